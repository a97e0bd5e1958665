"""Files as the command writes them: sparse ones to the published byte, whole ones or none, one sentence."""

import hashlib
import json
from pathlib import Path

import pytest

from model.checkpoints.descriptions import VARIANTS, TensorSpec, describe
from model.checkpoints.header import OpenCheckpoint, read_header
from model.synthetic.command import run
from model.synthetic.writer import write_file

pytestmark = pytest.mark.usefixtures("one_thread")

PUBLISHED = {
    "dit_pruned_nvfp4": "b62e4dffa5e111a50c42132e0c200fdebbd499b33ab7f81670cde0b498524354",
    "dit_pruned_int8_convrot": "8232b3c428e54591c286b5eee3eaba840f03d2cd2cb359ec09dd2558974ddc74",
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.safetensors"


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_sparse_file_has_the_published_length_and_markers_and_takes_no_room(
    variant: str, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["--variant", variant, "--size", "full", "--sparse", str(path)]) == 0

    facts, description = json.loads(capsys.readouterr().out), describe(variant)
    assert path.stat().st_size == facts["bytes"] == description.expect["file_bytes"]
    assert path.stat().st_blocks * 512 < 4 * 2**20
    assert facts["published_header"] == (variant in PUBLISHED)
    with OpenCheckpoint(path, strict=True) as file:
        assert file.header.sha256 == PUBLISHED.get(variant, file.header.sha256) == facts["header_sha256"]
        assert file.header.shapes == {tensor.name: tensor.shape for tensor in description.tensors}
        for tensor in description.tensors:
            if tensor.marker is not None:
                assert file.read_tensor(tensor.name) == tensor.marker


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_tiny_file_has_its_described_tensors_and_the_same_bytes_every_time(
    variant: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["--variant", variant, str(tmp_path)]) == 0
    assert run(["--variant", variant, str(tmp_path / "again.safetensors")]) == 0

    written = tmp_path / f"{variant}.safetensors"
    header = read_header(written, strict=True)
    assert json.loads(capsys.readouterr().out.splitlines()[0])["path"] == str(written)
    assert header.shapes == {tensor.name: tensor.shape for tensor in describe(variant, "tiny").tensors}
    assert header.metadata == {"weights": "random"}
    assert written.read_bytes() == (tmp_path / "again.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--variant", "dit_pruned_nf4", "new"], "'dit_pruned_nf4' is not one of 'dit_full_bf16', "),
        (["--variant", "dit_pruned_bf16", "--size", "huge", "new"], "'huge' is not one of 'tiny', 'full'"),
        (["--variant", "dit_pruned_bf16"], "Missing argument 'OUT'"),
        (["new"], "Missing option '--variant'"),
        (["--variant", "dit_pruned_bf16", "there.safetensors"], "exists; add --overwrite"),
        (["--variant", "dit_pruned_bf16", "there.safetensors/new"], "there.safetensors is no folder"),
        (["--variant", "dit_pruned_bf16", "/proc/"], "/proc takes no files; choose another folder"),
        (
            ["--variant", "dit_pruned_bf16", "--twin", "plain-scales", "new"],
            "holds nothing that plain-scales",
        ),
        (["--variant", "dit_pruned_nvfp4", "--twin", "upside-down", "new"], "is not one of 'plain-scales'"),
        (
            ["--variant", "dit_pruned_nvfp4", "--twin", "plain-scales", "--sparse", "new"],
            "leave out --sparse",
        ),
    ],
)
def test_bad_input_is_refused_in_one_sentence_and_leaves_nothing(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there.safetensors").write_text("precious")

    code = run(arguments)

    said = capsys.readouterr()
    assert code == 2
    assert json.loads(said.out)["error"]["code"] == "invalid_request"
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    assert sentence in said.err
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["there.safetensors"]
    assert Path("there.safetensors").read_text() == "precious"


def test_a_disk_too_small_is_told_before_anything_is_written(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "shutil.disk_usage", lambda folder: type("Usage", (), {"total": 10**12, "free": 10**9})
    )

    assert run(["--variant", "dit_pruned_nvfp4", "--size", "full", str(path)]) == 2

    assert "needs 12.5 GB and" in capsys.readouterr().err
    assert list(path.parent.iterdir()) == []


def test_overwrite_replaces_a_file_and_quiet_says_nothing(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path.write_text("old")

    assert run(["--variant", "lora_turbo_rank128", "--overwrite", "--quiet", str(path)]) == 0

    assert capsys.readouterr() == ("", "")
    assert len(read_header(path).tensors) == len(describe("lora_turbo_rank128", "tiny").tensors)


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_breaks_off_leaves_the_old_file_and_no_part_of_the_new(
    path: Path, failure: BaseException
) -> None:
    path.write_text("old")
    description = describe("dit_pruned_bf16", "tiny")

    def content(tensor: TensorSpec) -> memoryview:
        if tensor.begin > description.payload_bytes // 2:
            raise failure
        return memoryview(bytes(tensor.end - tensor.begin))

    with pytest.raises(type(failure)):
        write_file(path, description, content)

    assert [found.name for found in path.parent.iterdir()] == [path.name]
    assert path.read_text() == "old"


def test_help_names_every_variant_with_its_size_and_ends_with_examples(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["--help"]) == 0

    text = capsys.readouterr().out
    assert all(variant in text for variant in VARIANTS)
    assert "12.53 GB  MiniMax_H3_Ref2VA_pruned_nvfp4.safetensors" in text
    assert text.rstrip().splitlines()[-1].strip().startswith("python -m model.synthetic --variant")


def test_the_identity_of_a_written_header_is_that_of_its_bytes(path: Path) -> None:
    run(["--variant", "dit_pruned_nvfp4", "--size", "full", "--sparse", "--quiet", str(path)])

    with path.open("rb") as file:
        assert hashlib.sha256(file.read(8 + 116_000)).hexdigest() == PUBLISHED["dit_pruned_nvfp4"]
