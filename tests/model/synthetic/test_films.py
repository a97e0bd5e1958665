"""Every variant at tiny size: written, inspected, loaded by the real loader, and making the film of bf16.

The film's error is that of the format, neither more (something is decoded wrongly) nor less (nothing was).
"""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import pytest
import torch

from model.base import Generation
from model.checkpoints.descriptions import VARIANTS, describe
from model.checkpoints.header import read_header
from model.checkpoints.inspection import inspect_file
from model.errors import CheckpointFileError, ModelError
from model.loading.models import load_text_encoder, load_transformer
from model.pipeline import H3Pipeline
from model.startup import load_pipeline
from model.synthetic.faults import write_twin
from model.synthetic.h3_tiny import write_h3_tiny
from model.synthetic.twins import Twin
from model.synthetic.values import Values
from model.synthetic.writer import write_file, write_sparse
from queue_schemas.jobs import build_job
from queue_schemas.published import published_files

pytestmark = pytest.mark.usefixtures("one_thread")

FILM_ERROR: Final = {
    "dit_full_int8_convrot": (0.0087, 0.0034),
    "dit_pruned_fp8_scaled": (0.033, 0.018),
    "dit_pruned_int8_convrot": (0.013, 0.0043),
    "dit_pruned_nvfp4": (0.146, 0.064),
    "dit_pruned_int4_convrot": (0.149, 0.100),
    "te_qwen3vl_int8_convrot": (0.0135, 0.0038),
    "te_qwen3vl_nvfp4_awq": (0.084, 0.047),
    "te_qwen3vl_int4_convrot": (0.112, 0.056),
}
"""Relative L2 of pixels (about their mean) and sound against the bf16 file, measured: docs/checkpoints.md."""
MOST: Final = 1.5
"""Times the measured error: within it the film is the format's, beyond it the file was misread."""


class Studio:
    """Writes variants once, and makes small films with h3-tiny, one of its files in another's place."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        write_h3_tiny(folder / "h3-tiny")
        self.base = load_pipeline(models_dir=folder / "h3-tiny", device="cpu")
        self.write, self.film = cache(self._write), cache(self._film)

    def _write(self, variant: str, hidden_size: int = 256) -> Path:
        description = describe(variant, "tiny", dims={"H": hidden_size} if "dit" in variant else None)
        path = self.folder / f"{variant}-{hidden_size}.safetensors"
        write_file(path, description, Values(description).bytes)
        return path

    def _film(self, path: Path) -> Generation:
        header, cpu = read_header(path), torch.device("cpu")
        if "model.embed_tokens.weight" in header.tensors:
            encoder = load_text_encoder(header, device=cpu, dtype=torch.float32)
            models = replace(self.base.models, text_encoder=encoder)
        else:
            transformer = load_transformer(header, device=cpu, compute_dtype=torch.float32)
            models = replace(self.base.models, transformer=transformer)
        size = {"width": 64, "height": 32, "frames": 5, "steps": 4}
        job = build_job({"prompt": "a red fox in snow", "seed": 7, "checkpoint": "h3-tiny", **size})
        pipeline = H3Pipeline(models, self.base.files, device=cpu)
        return pipeline.generate(job, on_progress=lambda event: None, cancelled=lambda: False)

    def errors(self, found: Path, wanted: Path) -> tuple[float, float]:
        """Return how far the pixels and the sound of one file's film are from another's."""
        film, other = self.film(found), self.film(wanted)
        centre = other.frames.mean()
        return (
            _relative_l2(film.frames - centre, other.frames - centre),
            _relative_l2(film.waveform, other.waveform),
        )


def _relative_l2(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Studio:
    return Studio(tmp_path_factory.mktemp("studio"))


def bf16_of(variant: str) -> str:
    family = "te_qwen3vl" if variant.startswith("te_") else "_".join(variant.split("_")[:2])
    return f"{family}_bf16"


@pytest.mark.parametrize("variant", FILM_ERROR)
def test_a_quantised_file_makes_the_film_of_bf16_within_its_formats_error(
    variant: str, studio: Studio
) -> None:
    found = studio.errors(studio.write(variant), studio.write(bf16_of(variant)))

    for error, expected in zip(found, FILM_ERROR[variant], strict=True):
        assert 0.6 * expected < error < MOST * expected


def test_nvfp4_with_padded_rows_columns_and_scales_makes_the_film_of_bf16(studio: Studio) -> None:
    found = studio.errors(studio.write("dit_pruned_nvfp4", 200), studio.write("dit_pruned_bf16", 200))

    assert min(found) > 0.03
    assert max(found) < 0.25


@pytest.mark.parametrize(
    ("variant", "twin"),
    [
        ("dit_pruned_nvfp4", Twin.PLAIN_SCALES),
        ("dit_pruned_nvfp4", Twin.SWAPPED_NIBBLES),
        ("dit_pruned_nvfp4", Twin.INTERLEAVED_QKV),
        ("dit_pruned_bf16", Twin.INTERLEAVED_QKV),
        ("dit_pruned_int4_convrot", Twin.SWAPPED_NIBBLES),
        ("te_qwen3vl_nvfp4_awq", Twin.PLAIN_SCALES),
    ],
)
def test_the_film_tells_a_twin_whose_header_is_the_good_ones(
    variant: str, twin: Twin, studio: Studio, tmp_path: Path
) -> None:
    write_twin(tmp_path / "twin.safetensors", describe(variant, "tiny"), twin)

    pixels, _ = studio.errors(tmp_path / "twin.safetensors", studio.write(bf16_of(variant)))

    format_error, _ = FILM_ERROR.get(variant, (0.1, 0.1))
    assert pixels > MOST * format_error


@pytest.mark.parametrize(
    ("twin", "sentence"),
    [
        (Twin.HALVED_MARKERS, r"marker .*comfy_quant is no JSON text"),
        (Twin.DROPPED_MARKERS, r"blocks\.0\.attn\.out_proj"),
        (Twin.NO_GLOBAL_SCALE, r"missing .*weight_scale_2"),
    ],
)
def test_a_twin_that_lacks_something_is_refused_by_name(
    twin: Twin, sentence: str, studio: Studio, tmp_path: Path
) -> None:
    write_twin(tmp_path / "twin.safetensors", describe("dit_pruned_nvfp4", "tiny"), twin)

    with pytest.raises(ModelError, match=sentence):
        studio.film(tmp_path / "twin.safetensors")


@pytest.mark.parametrize("twin", [Twin.TRAILING_BYTES, Twin.PADDED_HEADER])
def test_bytes_around_the_tensors_change_no_film(twin: Twin, studio: Studio, tmp_path: Path) -> None:
    path = tmp_path / "twin.safetensors"
    write_twin(path, describe("dit_pruned_nvfp4", "tiny"), twin)

    made, good = studio.film(path), studio.film(studio.write("dit_pruned_nvfp4"))

    assert np.array_equal(made.frames, good.frames)
    assert np.array_equal(made.waveform, good.waveform)
    header = read_header(path)
    assert (header.trailing_bytes == 65) == (twin is Twin.TRAILING_BYTES)
    assert (header.payload_offset == 8 + 2**20) == (twin is Twin.PADDED_HEADER)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_inspector_knows_every_tiny_file_for_what_it_is(variant: str, studio: Studio) -> None:
    found = inspect_file(studio.write(variant), registry=published_files())

    assert (found.variant, found.released_size) == (variant, False)
    assert [*found.missing.names, *found.unmatched.names, *found.misshapen.names, *found.problems] == []
    assert found.holes is None
    assert found.runtime.loads


def test_tiny_files_named_one_by_one_are_a_set_with_a_vocabulary_of_bytes(studio: Studio) -> None:
    pipeline = load_pipeline(
        checkpoint=str(studio.write("dit_pruned_bf16")),
        text_encoder=str(studio.write("te_qwen3vl_bf16")),
        video_vae=str(studio.write("vae_video_fp16")),
        audio_vae=str(studio.write("vae_audio_fp32")),
        device="cpu",
    )

    tokenizer, base = pipeline.models.tokenizer, studio.base.models.tokenizer
    assert tokenizer.identity == base.identity
    assert pipeline.card().checkpoint.files[-1].name == "tiny vocabulary of bytes"


@pytest.mark.parametrize("variant", ["dit_pruned_nvfp4", "dit_full_bf16", "te_qwen3vl_int8_convrot"])
def test_a_sparse_full_size_file_can_be_inspected_and_not_be_loaded(
    variant: str, studio: Studio, tmp_path: Path
) -> None:
    path = tmp_path / "sparse.safetensors"
    write_sparse(path, describe(variant))

    found = inspect_file(path, registry=published_files())
    with pytest.raises(CheckpointFileError, match="never written"):
        studio.film(path)

    assert (found.variant, found.released_size) == (variant, True)
    assert found.holes is not None
    assert found.holes.size_bytes > 0.99 * (path.stat().st_size - 2**20)
