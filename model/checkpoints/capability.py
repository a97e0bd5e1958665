"""What this version of the runtime does with a file, and how on which generation of GPUs.

The one place that says what is built: tests hold it against the loaders.
"""

from collections.abc import Collection, Mapping
from typing import Final

from model.checkpoints.loras import FoundLora
from queue_schemas.inspections import GpuUse, RuntimeUse

READ_LAYOUTS: Final[Mapping[str, frozenset[str]]] = {
    "transformer": frozenset({"comfyui", "diffusers"}),
    "text_encoder": frozenset({"comfyui", "original"}),
    "video_vae": frozenset({"comfyui", "diffusers"}),
    "audio_vae": frozenset({"comfyui"}),
}
WHOLE_DELTAS: Final = (".diff", ".diff_b")
"""Keys of a LoRA that are no factors and are added all the same."""
_GENERATIONS: Final = (
    ("CPU", "-"), ("Turing", "7.5"), ("Ampere", "8.0-8.7"), ("Ada", "8.9"), ("Hopper", "9.0"),
    ("Blackwell, data centre", "10.0-10.3"), ("Blackwell, RTX and GB10", "12.0-12.1"),
)  # fmt: skip
_COMPUTE: Final = {
    "transformer": "bf16", "text_encoder": "bf16", "video_vae": "float16", "audio_vae": "float32",
}  # fmt: skip
"""What each model computes in on a GPU; on a CPU all take float32."""
_PRODUCTS: Final = {
    "nvfp4": ("10.0-10.3", "12.0-12.1"),
    "float8_e4m3fn": ("8.9", "9.0", "10.0-10.3", "12.0-12.1"),
    "int8_tensorwise": ("7.5", "8.0-8.7", "8.9", "9.0", "10.0-10.3", "12.0-12.1"),
    "convrot_w4a4": ("8.0-8.7", "8.9"),
}
"""Where the hardware multiplies the format's own numbers."""


def model_use(
    *, family: str | None, layout: str | None, packed: Collection[str], fits: bool, hollow: bool
) -> RuntimeUse:
    """Say whether the loaders accept a model's file, and how its weights are multiplied.

    `fits`: nothing is missing, left over or stored in a form that its format does not have.
    """
    if family is None:
        why = "it holds no model of H3"
    elif hollow:
        why = "parts of it were never written"
    elif not fits:
        why = "its tensors are not exactly those of the architecture"
    elif layout not in READ_LAYOUTS[family]:
        why = f"this version does not read the {layout} layout; use ComfyUI's file"
    else:
        return RuntimeUse(loads=True, why="loads", gpus=gpu_uses(family, packed))
    return RuntimeUse(loads=False, why=why)


def lora_use(lora: FoundLora, *, hollow: bool) -> RuntimeUse:
    """Say whether all of a LoRA has a place in some transformer; the resident one may be another."""
    replacing = [name for name in lora.others if not name.endswith(WHOLE_DELTAS)]
    homeless = len(replacing) + len(lora.unmatched)
    if hollow:
        return RuntimeUse(loads=False, why="parts of it were never written")
    if lora.problems or not (lora.ranks or lora.others):
        return RuntimeUse(loads=False, why="it is malformed")
    if homeless:
        why = f"{homeless} tensors have no place; --allow-partial-lora loads the rest"
        return RuntimeUse(loads=False, why=why)
    return RuntimeUse(loads=True, why="loads onto a transformer of its sizes")


def gpu_uses(family: str, formats: Collection[str]) -> tuple[GpuUse, ...]:
    """Say how weights of these formats, by marker name, are multiplied; none means plain weights."""
    return tuple(
        GpuUse(generation=name, compute_capability=capability, how=_how(family, capability, formats))
        for name, capability in _GENERATIONS
    )


def _how(family: str, capability: str, formats: Collection[str]) -> str:
    compute = "float32" if capability == "-" else _COMPUTE[family]
    parts = [f"{compute} products of plain weights"]
    if formats:
        parts = [f"weights stay packed and are decoded to {compute} for each product"]
    if capability == "7.5" and compute == "bf16":
        parts.append("slow, for there are no bf16 tensor cores")
    native = sorted(name for name in formats if capability in _PRODUCTS.get(name, ()))
    if native:
        parts.append(f"the GPU's own {' and '.join(native)} products are not used yet")
    return "; ".join(parts)
