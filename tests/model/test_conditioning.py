"""The conditioning cache over a small encoder: what makes a key, what a hit is, what is not believed."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save
from small_qwen import SMALL, expected_shapes, loaded, random_bytes, random_weights
from torch import Tensor

from model.conditioning.cache import Conditioning, ConditioningCache, ConditioningOptions
from model.conditioning.entries import EntryDamagedError, entry_bytes_max, pack_entry, unpack_entry
from model.conditioning.keys import EncoderIdentity, features_key, sight_sha256
from model.conditioning.shared import SharedLevel, SharedStoreError
from model.errors import ReferenceUnusedError
from model.text_encoder.encoder import See, TextEncoder
from model.text_encoder.presentation import Presentation, Shown, ShownClip, ShownPicture, present
from model.text_encoder.tokenizer import Tokenizer
from model.text_encoder.vision import Sight, VisionRows
from queue_schemas.conventions import COMFYUI, DIFFUSERS, Conventions

pytestmark = pytest.mark.usefixtures("one_thread")

TOKENIZER = Tokenizer.tiny()
IDENTITY = EncoderIdentity(
    header_sha256="aa",
    sample_sha256="bb",
    formats=(),
    dtype="float32",
    tokenizer="cc",
    device="cpu",
    backend="none",
    versions={"torch": "2", "transformers": "5"},
)
ONE, OTHER = (ShownPicture(pixels=random_bytes(64, 96, 3, seed=n)) for n in (1, 2))
CLIP = ShownClip(frames=random_bytes(3, 96, 64, 3, seed=3), pair_seconds=[0.25, 1.0], has_sound=False)
KEY = "ab" * 32
MEGABYTE = 1_000_000


def shown(
    *media: Shown, prompt: str = "a fox", conventions: Conventions = COMFYUI, tokenizer: Tokenizer = TOKENIZER
) -> Presentation:
    return present(prompt, media, tokenizer=tokenizer, conventions=conventions)


def key_of(presentation: Presentation, identity: EncoderIdentity = IDENTITY) -> str:
    sights = {block.sight: sight_sha256(block.sight) for block in presentation.blocks}
    return features_key(identity, presentation, sights=sights)


class Calls(Counter[str]):
    """How often the towers of an encoder ran."""


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> TextEncoder:
    weights = random_weights(expected_shapes(SMALL))
    return loaded(weights, tmp_path_factory.mktemp("small"), dtype=torch.float32)


@pytest.fixture
def calls(encoder: TextEncoder) -> Iterator[Calls]:
    found = Calls()
    towers = [encoder.model.get_submodule(name) for name in ("visual", "language_model")]
    hooks = [
        tower.register_forward_hook(lambda *_, name=name: found.update([name]))
        for tower, name in zip(towers, ("visual", "language"), strict=True)
    ]
    yield found
    for hook in hooks:
        hook.remove()


def in_memory(num_bytes: int = MEGABYTE) -> ConditioningCache:
    return ConditioningCache(IDENTITY, ConditioningOptions(memory_bytes=num_bytes))


def on_disk(folder: Path, *, memory_bytes: int = 0, max_bytes: int = 10 * MEGABYTE) -> ConditioningCache:
    return ConditioningCache(
        IDENTITY, ConditioningOptions(memory_bytes=memory_bytes, folder=folder, folder_bytes=max_bytes)
    )


def wait_for(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def use_of(read: Conditioning) -> tuple[str, str]:
    return read.use, read.told


def test_equal_presentations_have_one_key_and_anything_else_another() -> None:
    moved = random_bytes(64, 96, 3, seed=1)
    moved[0, 0, 0] ^= 1
    pad = TOKENIZER.decode([shown(ONE).ids[shown(ONE).blocks[0].start]])
    presentations = [
        shown(),
        shown(prompt="a fox "),
        shown(ONE),
        shown(OTHER),
        shown(ShownPicture(pixels=moved)),
        shown(ShownPicture(pixels=ONE.pixels.flip(0))),
        shown(ONE, OTHER),
        shown(OTHER, ONE),
        shown(CLIP),
        shown(ONE, conventions=DIFFUSERS),
        shown(replace(CLIP, frames=CLIP.frames.flip(0))),
        shown(prompt=pad),  # the token as text
        shown(prompt=r"\(a\) fox"),
        shown(prompt=r"\(a\) fox", conventions=DIFFUSERS),
    ]

    keys = [key_of(presentation) for presentation in presentations]

    assert len(set(keys)) == len(keys)
    assert key_of(shown(ShownPicture(pixels=ONE.pixels.clone()))) == key_of(shown(ONE))


@pytest.mark.parametrize(
    "change",
    [
        {"header_sha256": "x"},
        {"sample_sha256": "x"},
        {"formats": ("Int8Linear",)},
        {"dtype": "bfloat16"},
        {"tokenizer": "x"},
        {"device": "NVIDIA GB10"},
        {"backend": "x"},
        {"versions": {"torch": "3", "transformers": "5"}},
    ],
)
def test_another_encoder_has_another_key(change: dict[str, object]) -> None:
    assert key_of(shown(ONE), replace(IDENTITY, **change)) != key_of(shown(ONE))


def test_a_change_of_the_implementation_gives_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key_of(shown())

    monkeypatch.setattr("model.conditioning.keys.IMPLEMENTATION", 0)

    assert key_of(shown()) != before


def test_a_prompt_is_encoded_once_and_a_hit_is_bit_for_bit_the_miss(
    encoder: TextEncoder, calls: Calls
) -> None:
    cache, presentation = in_memory(), shown(ONE, CLIP)
    alone = encoder.encode(presentation)
    calls.clear()

    reads = [cache.read(shown(ONE, CLIP), encoder) for _ in range(20)]

    assert calls == {"visual": 3, "language": 1}
    assert use_of(reads[0]) == ("miss", "miss; 0 of 3 sights known")
    assert {use_of(read) for read in reads[1:]} == {("hit", "hit in memory")}
    assert all(torch.equal(read.features, alone) for read in reads)
    reads[1].features.zero_()  # a hit is the caller's own
    assert torch.equal(cache.read(presentation, encoder).features, alone)


def test_another_prompt_beside_the_same_pictures_skips_the_vision_tower(
    encoder: TextEncoder, calls: Calls
) -> None:
    cache = in_memory()
    cache.read(shown(ONE, CLIP), encoder)
    other = shown(CLIP, ONE, prompt="a blue fox")
    alone = encoder.encode(other)
    calls.clear()

    read = cache.read(other, encoder)

    assert calls == {"language": 1}
    assert use_of(read) == ("miss", "miss; 3 of 3 sights known")
    assert torch.equal(read.features, alone)


@pytest.mark.parametrize("reuse", [True, False])
def test_what_is_off_encodes_anew_and_keeps_nothing(
    encoder: TextEncoder, calls: Calls, tmp_path: Path, *, reuse: bool
) -> None:
    cache = on_disk(tmp_path, memory_bytes=MEGABYTE)
    if reuse:
        cache = ConditioningCache(IDENTITY, ConditioningOptions(folder=tmp_path))

    reads = [cache.read(shown(ONE), encoder, reuse=reuse) for _ in range(2)]

    assert {use_of(read) for read in reads} == {("off", "off")}
    assert calls == {"visual": 2, "language": 2}
    if not reuse:
        assert cache.read(shown(ONE), encoder).use == "miss"


def test_nothing_is_kept_of_what_is_refused_while_it_is_encoded(encoder: TextEncoder) -> None:
    cache = in_memory()

    def refuse(see: See) -> See:
        def look(sight: Sight) -> VisionRows:
            raise ReferenceUnusedError("references[0]", "it is empty")

        return look

    with pytest.raises(ReferenceUnusedError):
        cache.read(shown(ONE), encoder, watch=refuse)

    assert cache.read(shown(ONE), encoder).use == "miss"


def test_memory_keeps_to_its_bound_and_gives_up_what_was_used_longest_ago(
    encoder: TextEncoder, calls: Calls
) -> None:
    prompts = ["fox a", "fox b", "fox c"]
    size = len(prompts[0]) * SMALL.hidden_size * 4
    cache = in_memory(2 * size)
    for prompt in ("fox a", "fox b", "fox a", "fox c"):
        cache.read(shown(prompt=prompt), encoder)

    uses = [cache.read(shown(prompt=prompt), encoder).use for prompt in ("fox a", "fox c", "fox b")]

    assert uses == ["hit", "hit", "miss"]
    assert cache._memory.num_bytes == 2 * size
    assert cache.read(shown(prompt="a fox much too long"), encoder).use == "miss"
    assert cache.read(shown(prompt="fox b"), encoder).use == "hit"  # nothing gave way to it


def test_the_next_process_finds_on_disk_what_this_one_computed(
    encoder: TextEncoder, calls: Calls, tmp_path: Path
) -> None:
    first = on_disk(tmp_path).read(shown(ONE), encoder)
    wait_for(lambda: list(tmp_path.glob("*.safetensors")))
    later = on_disk(tmp_path, memory_bytes=MEGABYTE)

    second, third = (later.read(shown(ONE), encoder) for _ in range(2))

    assert calls["language"] == 1
    assert use_of(second) == ("hit", "hit in folder")
    assert use_of(third) == ("hit", "hit in memory")
    assert torch.equal(second.features, first.features)
    assert torch.equal(third.features, first.features)


def truncated(data: bytes, features: Tensor) -> bytes:
    return data[:-1]


def emptied(data: bytes, features: Tensor) -> bytes:
    return b""


def with_a_flipped_bit(data: bytes, features: Tensor) -> bytes:
    return data[:-3] + bytes([data[-3] ^ 1]) + data[-2:]


def lengthened(data: bytes, features: Tensor) -> bytes:
    return data + b"\0" * 10_000


def foreign(data: bytes, features: Tensor) -> bytes:
    return b"\x89PNG\r\n\x1a\n" * 100


def of_another_key(data: bytes, features: Tensor) -> bytes:
    return pack_entry(KEY, features)


def of_another_shape(data: bytes, features: Tensor) -> bytes:
    return data.replace(b"[5,40]", b"[40,5]")


def of_another_dtype(data: bytes, features: Tensor) -> bytes:
    return data.replace(b"F32", b"I32")


def without_metadata(data: bytes, features: Tensor) -> bytes:
    return bytes(save({"features": features}))


@pytest.mark.parametrize(
    "damage",
    [
        truncated,
        emptied,
        with_a_flipped_bit,
        lengthened,
        foreign,
        of_another_key,
        of_another_shape,
        of_another_dtype,
        without_metadata,
    ],
)
def test_an_entry_that_is_not_what_it_should_be_is_removed_and_a_miss(
    encoder: TextEncoder,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[bytes, Tensor], bytes],
) -> None:
    right = on_disk(tmp_path).read(shown(), encoder).features
    wait_for(lambda: list(tmp_path.glob("*.safetensors")))
    (path,) = tmp_path.glob("*.safetensors")
    data = path.read_bytes()
    damaged = damage(data, right)
    assert damaged != data
    path.write_bytes(damaged)

    read = on_disk(tmp_path).read(shown(), encoder)

    assert read.use == "miss"
    assert torch.equal(read.features, right)
    assert f"entry {path.stem} (folder) is not used" in caplog.text
    wait_for(lambda: path.exists() and path.read_bytes() == data)  # written anew
    assert on_disk(tmp_path).read(shown(), encoder).use == "hit"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16])
def test_an_entry_holds_its_features_bit_for_bit(dtype: torch.dtype) -> None:
    features = torch.randn(7, 40).to(dtype)

    data = pack_entry(KEY, features)

    assert torch.equal(unpack_entry(data, key=KEY, shape=(7, 40), dtype=dtype), features)
    assert torch.equal(load(data)["features"], features)  # by the reference library
    assert len(data) <= entry_bytes_max((7, 40), dtype)
    with pytest.raises(EntryDamagedError, match="does not hold"):
        unpack_entry(data, key=KEY, shape=(8, 40), dtype=dtype)


class Shared:
    """A store in this process that can be slow or away."""

    def __init__(self) -> None:
        self.entries: dict[str, bytes] = {}
        self.answering = threading.Event()
        self.answering.set()
        self.is_away = False
        self.asked = 0

    def get(self, key: str, *, limit_bytes: int) -> bytes | None:
        self.asked += 1
        self._work()
        return self.entries.get(key)

    def put(self, key: str, data: bytes) -> None:
        self._work()
        self.entries[key] = data

    def _work(self) -> None:
        self.answering.wait(10)
        if self.is_away:
            raise SharedStoreError("the store is away")


@pytest.fixture
def store() -> Iterator[Shared]:
    store = Shared()
    yield store
    store.answering.set()


def test_what_one_node_computed_the_other_finds_and_keeps_on_its_disk(
    encoder: TextEncoder, calls: Calls, tmp_path: Path, store: Shared
) -> None:
    options = ConditioningOptions(shared=store)
    first = ConditioningCache(IDENTITY, options).read(shown(ONE), encoder)
    wait_for(lambda: store.entries)
    options = replace(options, folder=tmp_path, folder_bytes=MEGABYTE)

    second = ConditioningCache(IDENTITY, options).read(shown(ONE), encoder)

    assert use_of(second) == ("hit", "hit in store")
    assert torch.equal(second.features, first.features)
    assert calls["language"] == 1
    wait_for(
        lambda: [path.read_bytes() for path in tmp_path.glob("*.safetensors")] == list(store.entries.values())
    )


def test_a_damaged_entry_of_the_store_is_replaced(encoder: TextEncoder, store: Shared) -> None:
    options = ConditioningOptions(shared=store)
    ConditioningCache(IDENTITY, options).read(shown(), encoder)
    wait_for(lambda: store.entries)
    ((key, right),) = store.entries.items()
    store.entries[key] = right[:-1]

    read = ConditioningCache(IDENTITY, options).read(shown(), encoder)

    assert read.use == "miss"
    wait_for(lambda: store.entries[key] == right)


@pytest.mark.parametrize("is_away", [True, False])
def test_a_store_that_is_away_or_silent_costs_one_wait_and_fails_nothing(
    store: Shared, caplog: pytest.LogCaptureFixture, *, is_away: bool
) -> None:
    level = SharedLevel(store, answer_seconds=0.05)
    store.is_away = is_away
    if not is_away:
        store.answering.clear()

    found = [level.get(KEY, limit_bytes=1_000) for _ in range(3)]
    level.put(KEY, b"entry")

    assert found == [None] * 3
    assert store.asked == 1
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert ("is away" if is_away else "did not answer") in caplog.text


def test_a_job_does_not_wait_for_what_is_written(encoder: TextEncoder, store: Shared) -> None:
    cache = ConditioningCache(IDENTITY, ConditioningOptions(memory_bytes=MEGABYTE, shared=store))
    cache._levels[0] = SharedLevel(store, answer_seconds=0.05)
    store.answering.clear()

    reads = [cache.read(shown(prompt=f"fox {n}"), encoder).use for n in range(8)]

    assert reads == ["miss"] * 8
    assert cache.read(shown(prompt="fox 7"), encoder).use == "hit"
