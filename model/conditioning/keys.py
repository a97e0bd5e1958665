"""Keys: everything that text features follow from, hashed; seeds, steps and prompts as strings are not in it.

Features follow from token ids, from where pictures lie among them and from their pixels, from the encoder's
weights, and to the last bit from dtype, device, software and this implementation. What is not the same on
two nodes gives two keys, so that an entry is always what the reader would have computed.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from model.text_encoder.presentation import Presentation
from model.text_encoder.vision import Sight

IMPLEMENTATION: Final = 1
"""To be raised with every change of presentation, vision tower or encoder that may change a bit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderIdentity:
    """What all features of one resident text encoder share."""

    header_sha256: str
    sample_sha256: str
    """As in the record: `model.loading.sample`."""
    formats: tuple[str, ...]
    """Storage formats of its quantised layers, sorted; empty for plain ones."""
    dtype: str
    tokenizer: str
    device: str
    """The GPU's name, or `cpu`."""
    backend: str
    """What computes there, as far as the versions do not say."""
    versions: Mapping[str, str]
    """Of torch and transformers."""


def features_key(
    identity: EncoderIdentity, presentation: Presentation, *, sights: Mapping[Sight, str]
) -> str:
    """Return the key of a presentation's features; `sights` holds `sight_sha256` of every block's sight."""
    stream = {
        "ids": presentation.ids,
        "tags": [int(tag) for tag in presentation.tags],
        "blocks": [(block.start, block.stop, sights[block.sight]) for block in presentation.blocks],
    }
    return _sha256([IMPLEMENTATION, asdict(identity), stream])


def sight_sha256(sight: Sight) -> str:
    """Return the hash of a picture or pair as the vision tower is given it."""
    fields = [list(sight.frames.shape), list(sight.grid), sight.antialias]
    digest = hashlib.sha256(json.dumps(fields).encode())
    digest.update(sight.frames.contiguous().numpy().data)
    return digest.hexdigest()


def _sha256(fields: Sequence[object]) -> str:
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
