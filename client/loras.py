"""What the fleet's nodes, or else the registry of published files, say of the LoRAs that jobs name."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from client.handle import AnyJob
from queue_schemas.jobs import build_job
from queue_schemas.loras import MadeFor, with_made_for
from queue_schemas.nodes import NodeCard


def known_loras(jobs: Iterable[AnyJob], nodes: Sequence[NodeCard]) -> list[MadeFor]:
    """Return what every LoRA of the jobs that somebody knows was made for.

    A fleet agrees on what a name means. Where no live node has it, the published file of that name is meant:
    the same jobs then have the same identity with and without a node.
    """
    loaded = {card.name: card for node in nodes for card in node.loras}
    names = dict.fromkeys(lora.name for job in jobs for lora in job.loras)
    found = [loaded.get(name) or _published(name) for name in names]
    return [lora for lora in found if lora is not None]


def settle_loras(
    jobs: Sequence[AnyJob], asked: Iterable[AnyJob | Mapping[str, Any]], loras: Sequence[MadeFor]
) -> list[AnyJob]:
    """Give jobs that were asked for by their fields the steps and shifts that their LoRAs were made for."""
    return [
        build_job({**job.model_dump(mode="json"), **_supplied(fields, loras)})
        if job.loras and isinstance(fields, Mapping)
        else job
        for job, fields in zip(jobs, asked, strict=True)
    ]


def _supplied(fields: Mapping[str, Any], loras: Sequence[MadeFor]) -> dict[str, Any]:
    filled = with_made_for(fields, loras)
    return {name: filled[name] for name in filled.keys() - fields.keys()}


def _published(name: str) -> MadeFor | None:
    from queue_schemas.published import published_files  # noqa: PLC0415 - most jobs have no LoRA

    known = published_files().named(f"{name}.safetensors")
    return known.made_for(name) if known is not None and known.family == "lora" else None
