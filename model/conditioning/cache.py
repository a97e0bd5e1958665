"""`ConditioningCache`: one prompt with its pictures is encoded once, whatever the number of seeds.

Three levels: memory, a folder, a store shared with other nodes; what one finds, those before it get. Rows of
the vision tower are kept in memory alone, by picture, for another prompt beside the same pictures. A hit is
bit for bit what the miss was. Everything slow that no answer needs is done in the background.

Shapes: L tokens, C = hidden_size.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from model.conditioning.background import Background
from model.conditioning.base import Level
from model.conditioning.entries import EntryDamagedError, entry_bytes_max, pack_entry, unpack_entry
from model.conditioning.folder import FolderLevel
from model.conditioning.keys import EncoderIdentity, features_key, sight_sha256
from model.conditioning.memory import MemoryLevel
from model.conditioning.shared import SharedLevel, SharedStore
from model.text_encoder.encoder import See, TextEncoder
from model.text_encoder.presentation import Presentation
from model.text_encoder.vision import Sight, VisionRows
from queue_schemas.benchmark import CacheUse

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditioningOptions:
    """Bounds and places; a bound of 0 turns its level off."""

    memory_bytes: int = 0
    folder: Path | None = None
    folder_bytes: int = 0
    shared: SharedStore | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditioning:
    """The features of one presentation, and where they are from."""

    features: Tensor
    """[L, C] on the encoder's device."""
    use: CacheUse
    told: str
    """For the log: `hit in memory`."""


class ConditioningCache:
    """Of one resident text encoder; used by one thread at a time."""

    def __init__(self, identity: EncoderIdentity, options: ConditioningOptions) -> None:
        self._identity = identity
        self._memory = MemoryLevel(options.memory_bytes)
        self._levels: list[Level] = []
        if options.folder is not None and options.folder_bytes > 0:
            self._levels.append(FolderLevel(options.folder, max_bytes=options.folder_bytes))
        if options.shared is not None:
            self._levels.append(SharedLevel(options.shared))
        self._background = Background() if self._levels else None

    def read(
        self,
        presentation: Presentation,
        encoder: TextEncoder,
        *,
        reuse: bool = True,
        watch: Callable[[See], See] = lambda see: see,
    ) -> Conditioning:
        """Return the features of a presentation, encoded now if no level has them, or without `reuse`.

        `watch` may look at what the vision tower makes; where it raises, no features are kept. Raises what
        `encode` raises.
        """
        if not reuse or not (self._memory.max_bytes or self._levels):
            features = encoder.encode(presentation, see=watch(encoder.encode_vision))
            return Conditioning(features=features, use="off", told="off")
        sights = {block.sight: sight_sha256(block.sight) for block in presentation.blocks}
        key = features_key(self._identity, presentation, sights=sights)
        found = self._find(
            key, shape=(len(presentation.ids), encoder.config.hidden_size), dtype=encoder.dtype
        )
        if found is not None:
            features, level = found
            told = f"hit in {level}"
            return Conditioning(features=features.to(encoder.device, copy=True), use="hit", told=told)
        see = _Rows(encoder, self._memory, sights)
        features = encoder.encode(presentation, see=watch(see))
        self._keep(key, features.to("cpu", copy=True))
        told = f"miss; {see.num_kept} of {len(presentation.blocks)} sights known" if sights else "miss"
        return Conditioning(features=features, use="miss", told=told)

    def _find(self, key: str, *, shape: tuple[int, int], dtype: torch.dtype) -> tuple[Tensor, str] | None:
        """Return features on the host, and the level that had them, which those before it get too."""
        kept = self._memory.get(key)
        if kept is not None:
            return kept[0], "memory"
        for number, level in enumerate(self._levels):
            data = level.get(key, limit_bytes=entry_bytes_max(shape, dtype))
            if data is None:
                continue
            try:
                features = unpack_entry(data, key=key, shape=shape, dtype=dtype)
            except EntryDamagedError as error:
                log.warning("conditioning cache: entry %s (%s) is not used: %s", key, level.name, error)
                level.drop(key)
                continue
            self._memory.put(key, features)
            self._write(self._levels[:number], key, partial(bytes, data))
            return features, level.name
        return None

    def _keep(self, key: str, features: Tensor) -> None:
        self._memory.put(key, features)
        self._write(self._levels, key, lambda: pack_entry(key, features))

    def _write(self, levels: list[Level], key: str, pack: Callable[[], bytes]) -> None:
        if self._background is None or not levels:
            return

        def write() -> None:
            data = pack()
            for level in levels:
                level.put(key, data)

        self._background.do(write)


class _Rows:
    """A `See` that asks the memory before the vision tower."""

    def __init__(self, encoder: TextEncoder, memory: MemoryLevel, sights: Mapping[Sight, str]) -> None:
        self._encoder, self._memory, self._sights = encoder, memory, sights
        self.num_kept = 0

    def __call__(self, sight: Sight) -> VisionRows:
        key = f"sight {self._sights[sight]}"
        kept = self._memory.get(key)
        if kept is not None:
            self.num_kept += 1
            merged, *deepstack = (rows.to(self._encoder.device) for rows in kept)
            return VisionRows(merged=merged, deepstack=tuple(deepstack))
        rows = self._encoder.encode_vision(sight)
        on_host = (part.to("cpu", copy=True) for part in (rows.merged, *rows.deepstack))
        self._memory.put(key, *on_host)
        return rows
