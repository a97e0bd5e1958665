"""What an engine says of a LoRA that it loaded: its file, how much of it fits, and what it was made for."""

import hashlib
from pathlib import Path
from typing import Final

from model.checkpoints.header import Header
from model.loading.sample import sample_sha256
from model.lora.files import LoraFile
from model.lora.plan import LoraPlan
from queue_schemas.loras import LoraCard, MadeFor
from queue_schemas.published import PublishedFile, PublishedFiles, load_published, published_files

OWN_REGISTRY: Final = "h3_published.json"
"""A file of this name in the models folder extends the registry of published files."""


def registry_of(models_dir: Path | None) -> PublishedFiles:
    """Return the shipped registry, extended by the models folder's own. Raises InvalidRequestError."""
    own = None if models_dir is None else models_dir / OWN_REGISTRY
    return load_published(own) if own is not None and own.is_file() else published_files()


def card_of(file: LoraFile, plan: LoraPlan, registry: PublishedFiles) -> LoraCard:
    known = published_lora(file.header, registry)
    made_for = MadeFor(name=file.name) if known is None else known.made_for(file.name)
    return LoraCard(
        file=file.header.path.name,
        header_sha256=file.header.sha256,
        sample_sha256=sample_sha256(file.header),
        matched_modules=len(plan.deltas),
        matched_tensors=plan.matched,
        num_tensors=plan.total,
        dropped={reason: len(names) for reason, names in plan.dropped.items()},
        published=None if known is None else known.name,
        **made_for.model_dump(),
    )


def published_lora(header: Header, registry: PublishedFiles) -> PublishedFile | None:
    """Return the LoRA of the registry that this file is: by its header, else by the hash of all of it.

    The whole file is hashed only where the registry knows one of its size by that hash alone.
    """
    loras = [file for file in registry.files if file.family == "lora"]
    by_header = next((file for file in loras if file.header_sha256 == header.sha256), None)
    if by_header is not None:
        return by_header
    unsure = [
        file
        for file in loras
        if file.sha256 and not file.header_sha256 and file.size_bytes in (None, header.size_bytes)
    ]
    if not unsure:
        return None
    with header.path.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    return next((file for file in unsure if file.sha256 == digest), None)
