"""AdaLN deltas of the full layout on a pruned transformer, with the time embedder that pruning took out.

The full layout's AdaLN reads c(t), E wide. A pruned file has c(t) = mean + basis · table(t) folded into its
weights and biases and kept the table alone. Given a time embedder, mean and basis are found again by least
squares over the table's rows, and up · down · c(t) = up · (down · basis) · table(t) + up · down · mean: as
exact as pruning itself. The embedder must be that of the model on which the LoRA was trained.

Shapes: G rows and B columns of the table, E width of c(t).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from model.checkpoints.header import OpenCheckpoint
from model.checkpoints.names import RENAMINGS, comfy_name, wrapper_prefix
from model.dit.timesteps import TimeEmbedder
from model.errors import CheckpointFileError
from model.loading.tensors import read_tensor
from model.lora.branch import Branch
from model.lora.errors import AdalnProjectionError
from model.shapes import check_shapes, sizing_shapes

PREFIX: Final = "time_embedder."
RESIDUAL_MAX: Final = 0.01
"""Of the curve about its mean, relative L2; pruning itself leaves about 2e-4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """c(t) = mean + basis · table(t)."""

    basis: Tensor
    """Float32 [E, B]."""
    mean: Tensor
    """Float32 [E]."""


def read_time_embedder(path: Path) -> TimeEmbedder:
    """Read the four tensors of a full transformer's time embedder, float32 on the CPU, and nothing else.

    Raises CheckpointFileError and CheckpointMismatchError.
    """
    with OpenCheckpoint(path) as file:
        prefix = wrapper_prefix(file.header.tensors)
        own = {
            comfy_name(name.removeprefix(prefix), RENAMINGS["transformer", "diffusers"]): name
            for name in file.header.tensors
        }
        stored = {name: own[name] for name in own if name.startswith(PREFIX)}
        if not stored:
            raise CheckpointFileError(path, "holds no time embedder, which only full transformers have")
        shapes = {name.removeprefix(PREFIX): file.header.shapes[where] for name, where in stored.items()}
        sizes = sizing_shapes(shapes, {"proj_in.weight": 2, "proj_out.weight": 2}, source=path)
        hidden, freq = sizes["proj_in.weight"]
        module = TimeEmbedder(freq, hidden, sizes["proj_out.weight"][0]).requires_grad_(False)
        wanted = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
        check_shapes(wanted, shapes, source=path)
        weights = {name.removeprefix(PREFIX): read_tensor(file, where) for name, where in stored.items()}
        module.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    return module


def project(embedder: TimeEmbedder, table: Tensor) -> Projection:
    """Find basis and mean for a pruned transformer's table [G, B]. Raises AdalnProjectionError."""
    table = table.double().cpu()
    curve = F.silu(embedder(torch.linspace(0, 1, len(table)))).double()  # [G, E]
    columns = torch.cat((table, torch.ones(len(table), 1, dtype=table.dtype)), dim=1)
    found = torch.linalg.lstsq(columns, curve).solution  # [B + 1, E]
    left = (columns @ found - curve).norm() / (curve - curve.mean(0)).norm()
    if not left <= RESIDUAL_MAX:
        raise AdalnProjectionError(float(left))
    return Projection(basis=found[:-1].T.float(), mean=found[-1].float())


def projected(branch: Branch, projection: Projection) -> Branch:
    """Return an AdaLN branch of the full layout as one of a pruned transformer's, float32 on the CPU."""
    assert branch.down is not None
    assert branch.up is not None
    constant = branch.scale * (branch.up @ (branch.down @ projection.mean))
    return Branch(
        down=branch.down @ projection.basis,
        up=branch.up,
        bias=constant if branch.bias is None else branch.bias + constant,
        scale=branch.scale,
    )
