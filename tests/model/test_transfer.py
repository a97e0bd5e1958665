"""Bytes from a checkpoint file onto a device: each where it belongs, large and small, wanted and skipped."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from model.checkpoints.header import OpenCheckpoint
from model.errors import CheckpointFileError
from model.loading import transfer
from model.loading.transfer import Reading, drop_page_cache, read_bytes

DEVICES = [torch.device("cpu"), pytest.param(torch.device("cuda"), marks=pytest.mark.gpu)]


@pytest.fixture
def tensors() -> dict[str, Tensor]:
    """Make some of every size around a chunk of 1,000 bytes, and empty ones."""
    made = torch.Generator().manual_seed(1)
    sizes = [0, 1, 3, 4, 999, 1000, 1001, 0, 2, 5000, 2500, 7]
    return {
        f"{number:02}.{size}": torch.randint(0, 256, (size,), generator=made, dtype=torch.uint8)
        for number, size in enumerate(sizes)
    }


@pytest.mark.parametrize("device", DEVICES, ids=str)
@pytest.mark.parametrize("chunk_bytes", [1000, 17, 1 << 20])
def test_every_byte_arrives_and_what_is_not_wanted_is_not_read(
    tmp_path: Path,
    tensors: dict[str, Tensor],
    monkeypatch: pytest.MonkeyPatch,
    device: torch.device,
    chunk_bytes: int,
) -> None:
    monkeypatch.setattr(transfer, "CHUNK_BYTES", chunk_bytes)
    path = tmp_path / "a.safetensors"
    save_file(tensors, path)

    with OpenCheckpoint(path) as file:
        wanted = {name: file.header.tensors[name] for name in tensors if not name.startswith("05")}
        found = read_bytes(file, wanted, device=device)

    assert list(found) == list(wanted)
    for name, data in found.items():
        assert data.device.type == device.type
        assert torch.equal(data.cpu(), tensors[name]), name


def test_small_tensors_share_one_read_and_a_gap_begins_another(
    tmp_path: Path, tensors: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "CHUNK_BYTES", 4096)
    path = tmp_path / "a.safetensors"
    save_file(tensors, path)
    with OpenCheckpoint(path) as file:
        entries = dict(file.header.tensors)
        del entries["06.1001"]
        chunks = list(transfer._chunks(file, entries, tensors))

    gap = file.header.tensors["06.1001"]
    offset = file.header.payload_offset
    cut = [(chunk.begin - offset, chunk.size) for chunk in chunks]
    assert cut == [(0, gap.begin), (gap.end, 4096), (7104, 3413)]
    assert len(chunks[0].pieces) == 5


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_a_file_that_shrinks_while_it_is_read_is_refused(
    tmp_path: Path, tensors: dict[str, Tensor], device: torch.device
) -> None:
    path = tmp_path / "a.safetensors"
    save_file(tensors, path)
    with OpenCheckpoint(path) as file:
        os.truncate(path, path.stat().st_size - 5)

        with pytest.raises(CheckpointFileError, match="ended while it was read"):
            read_bytes(file, file.header.tensors, device=device)


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_tensors_share_one_block_but_for_those_that_somebody_drops(
    tmp_path: Path, tensors: dict[str, Tensor], device: torch.device
) -> None:
    path = tmp_path / "a.safetensors"
    save_file(tensors, path)
    dropped = {"09.5000", "10.2500"}
    with (
        OpenCheckpoint(path) as file,
        Reading(file, file.header.tensors, device=device, apart=dropped) as reading,
    ):
        taken = {name: reading.data.pop(name) for name in tensors}  # before the bytes are there
        reading.wait()

    blocks = {data.untyped_storage().data_ptr() for data in taken.values()}
    assert len(blocks) == 1 + len(dropped)
    assert all(data.storage_offset() % transfer.ALIGNMENT == 0 for data in taken.values())
    assert all(torch.equal(data.cpu(), tensors[name]) for name, data in taken.items())


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_a_reading_that_is_given_up_has_ended_when_its_file_closes(
    tmp_path: Path, tensors: dict[str, Tensor], device: torch.device
) -> None:
    path = tmp_path / "a.safetensors"
    save_file(tensors, path)
    with (
        pytest.raises(ZeroDivisionError),
        OpenCheckpoint(path) as file,
        Reading(file, file.header.tensors, device=device) as reading,
    ):
        raise ZeroDivisionError

    assert all(lane.done() for lane in reading._lanes)


def test_dropping_the_page_cache_leaves_the_file_as_it_is(tmp_path: Path, tensors: dict[str, Tensor]) -> None:
    path = tmp_path / "a.safetensors"
    save_file(tensors, path)
    with OpenCheckpoint(path) as file:
        drop_page_cache(file)

        assert file.read_tensor("09.5000") == bytes(tensors["09.5000"].tolist())
