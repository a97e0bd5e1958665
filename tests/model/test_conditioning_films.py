"""The conditioning cache in whole films of h3-tiny: encoded once, the same film, told as it was."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import small_prepared as small

from media.prepared import PreparedMedia
from model.base import Generation
from model.conditioning.cache import ConditioningOptions
from model.conditioning.identity import encoder_identity
from model.pipeline import H3Pipeline
from model.startup import load_pipeline
from model.synthetic.h3_tiny import write_h3_tiny
from queue_schemas.jobs import build_job

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> H3Pipeline:
    folder = tmp_path_factory.mktemp("models")
    write_h3_tiny(folder)
    options = ConditioningOptions(memory_bytes=10_000_000, folder=folder / "kept", folder_bytes=10_000_000)
    return load_pipeline(models_dir=folder, device="cpu", conditioning=options)


@pytest.fixture
def encodings(pipeline: H3Pipeline) -> Iterator[list[str]]:
    """One item each time that the language tower ran."""
    found: list[str] = []
    language = pipeline.models.text_encoder.model.get_submodule("language_model")
    hook = language.register_forward_hook(lambda *_: found.append("language"))
    yield found
    hook.remove()


def film(pipeline: H3Pipeline, *media: PreparedMedia, reuse: bool = True, **fields: Any) -> Generation:
    asked: dict[str, Any] = {"width": 32, "height": 32, "frames": 5, "steps": 1, "seed": 1}
    if media:
        asked["references"] = [
            {"kind": each.kind, "source": f"references/{each.sha256}.bin", "sha256": each.sha256}
            for each in media
        ]
    job = build_job({**asked, "checkpoint": "h3-tiny", **fields})
    return pipeline.generate(
        job, media, on_progress=lambda _: None, cancelled=lambda: False, reuse_conditioning=reuse
    )


def same(left: Generation, right: Generation) -> bool:
    return np.array_equal(left.frames, right.frames) and np.array_equal(left.waveform, right.waveform)


def test_twenty_seeds_of_one_prompt_are_encoded_once(pipeline: H3Pipeline, encodings: list[str]) -> None:
    films = [film(pipeline, prompt="twenty seeds", seed=seed) for seed in range(20)]

    assert len(encodings) == 1
    assert [made.conditioning_cache for made in films] == ["miss", *["hit"] * 19]
    assert len({made.prompt.features_sha256 for made in films if made.prompt}) == 1
    assert len({made.frames.tobytes() for made in films}) == 20


def test_a_hit_a_miss_and_none_at_all_make_one_film_with_the_same_receipts(
    pipeline: H3Pipeline, encodings: list[str]
) -> None:
    media = [small.picture("references[0]"), small.clip("references[1]", frames=5)]

    miss, hit = (film(pipeline, *media, prompt="a fox") for _ in range(2))
    off = film(pipeline, *media, prompt="a fox", reuse=False)

    assert [made.conditioning_cache for made in (miss, hit, off)] == ["miss", "hit", "off"]
    assert len(encodings) == 2
    assert same(hit, miss)
    assert same(off, miss)
    assert hit.prompt == miss.prompt == off.prompt
    assert hit.references == miss.references == off.references


def test_without_options_nothing_is_kept(pipeline: H3Pipeline) -> None:
    plain = H3Pipeline(pipeline.models, pipeline.files, device=pipeline.device)

    uses = [film(plain, prompt="a fox").conditioning_cache for _ in range(2)]

    assert uses == ["off", "off"]


def test_the_identity_is_that_of_file_dtype_and_tokenizer(pipeline: H3Pipeline) -> None:
    models, header = pipeline.models, pipeline.files.text_encoder

    found = encoder_identity(
        models.text_encoder,
        pipeline.card().checkpoint,
        tokenizer=models.tokenizer.identity,
        facts=pipeline._facts,
    )

    assert found.header_sha256 == header.sha256
    assert (found.dtype, found.device, found.formats) == ("float32", "cpu", ())
    assert found.tokenizer == models.tokenizer.identity
    assert set(found.versions) == {"torch", "transformers"}
    assert all(found.versions.values())


@pytest.mark.gpu
def test_on_a_gpu_a_hit_is_the_miss_and_the_film_without_a_cache(pipeline: H3Pipeline) -> None:
    folder = pipeline.files.text_encoder.path.parents[1]
    options = ConditioningOptions(memory_bytes=10_000_000)
    on_gpu = load_pipeline(models_dir=folder, device="cuda", conditioning=options)
    media = [small.picture("references[0]"), small.clip("references[1]", frames=5)]

    miss, hit = (film(on_gpu, *media, prompt="a fox") for _ in range(2))
    off = film(on_gpu, *media, prompt="a fox", reuse=False)

    assert [made.conditioning_cache for made in (miss, hit, off)] == ["miss", "hit", "off"]
    assert same(hit, miss)
    assert same(off, miss)
    assert hit.prompt == miss.prompt == off.prompt
