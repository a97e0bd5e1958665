"""The engine: one film at a time, files whole or absent, busy until its GPU thread is back."""

import hashlib
import resource
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import small_media
from fake_pipeline import FakePipeline

from media.errors import FilmWriteError, ReferenceUnreadableError
from media.probe import probe
from model.errors import GenerationCancelledError, WrongCheckpointError
from queue_schemas.errors import ErrorCode, InvalidRequestError
from queue_schemas.events import ProgressEvent, Stage
from queue_schemas.requests import GenerateRequest
from worker.engine import Engine
from worker.errors import EngineBusyError, job_error
from worker.film_path import film_folder
from worker.gathering import Gathered, Sources, gather
from worker.reference_folder import ReferenceFolder, ReferenceFolderError

MakeRequest = Callable[..., GenerateRequest]


def never() -> bool:
    return False


def ignore(_: ProgressEvent) -> None:
    return


def test_a_request_becomes_a_film_with_the_facts_about_it(
    engine: Engine, make_request: MakeRequest, tmp_path: Path
) -> None:
    events: list[ProgressEvent] = []

    result = engine.generate(make_request(output="fox/take1.mp4"), on_event=events.append, cancelled=never)

    film = tmp_path / "engine" / "fox" / "take1.mp4"
    assert probe(film) == result.media
    assert (result.media.frames, result.media.width, result.media.height) == (5, 64, 32)
    assert result.files[0].sha256 == hashlib.sha256(film.read_bytes()).hexdigest()
    assert (result.files[0].name, result.files[0].size_bytes) == ("fox/take1.mp4", film.stat().st_size)
    assert (result.cold, result.jobs_served, result.evaluations) == (True, 0, 3)
    assert result.environment.node == "test-node"
    assert result.seconds.mux is not None
    assert result.seconds.engine_total is not None
    assert result.seconds.mux < result.seconds.engine_total
    assert "made by a fake pipeline" in result.notes
    assert [event.stage for event in events] == [Stage.TEXT_ENCODE, *[Stage.DENOISE] * 3, Stage.MUX]


def test_the_second_job_of_an_engine_is_warm(engine: Engine, make_request: MakeRequest) -> None:
    engine.generate(make_request(), on_event=ignore, cancelled=never)

    result = engine.generate(make_request(seed=8), on_event=ignore, cancelled=never)

    assert (result.cold, result.jobs_served) == (False, 1)
    assert engine.ready().jobs_served == 2


def test_what_a_caller_did_wrong_is_found_before_the_pipeline_runs(
    engine: Engine, pipeline: FakePipeline, make_request: MakeRequest
) -> None:
    with pytest.raises(WrongCheckpointError):
        engine.generate(make_request(checkpoint="other"), on_event=ignore, cancelled=never)

    assert pipeline.steps_run == 0


def test_a_link_below_the_output_root_cannot_lead_out_of_it(
    engine: Engine, make_request: MakeRequest, tmp_path: Path
) -> None:
    (tmp_path / "engine").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "engine" / "link").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(InvalidRequestError, match="output root"):
        engine.generate(make_request(output="link/fox.mp4"), on_event=ignore, cancelled=never)

    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("output", ["new/er/fox.mp4", "fox.mp4"])
def test_a_disk_that_takes_no_film_can_be_tried_again_and_is_left_as_it_was(
    engine: Engine, make_request: MakeRequest, tmp_path: Path, output: str
) -> None:
    (tmp_path / "engine").mkdir()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(FilmWriteError) as caught:
            engine.generate(make_request(output=output), on_event=ignore, cancelled=never)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    told = job_error(caught.value)
    assert (told.code, told.retryable) == (ErrorCode.STORAGE_UNAVAILABLE, True)
    assert "fox.mp4: File too large; make room there" in told.message
    assert list((tmp_path / "engine").iterdir()) == []


def test_a_folder_that_cannot_be_made_is_the_disks_fault(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with (
        pytest.raises(FilmWriteError, match="Not a directory"),
        film_folder(tmp_path / "file" / "a" / "fox.mp4"),
    ):
        pass


def test_a_cancelled_job_stops_before_the_next_step_and_leaves_no_file(
    engine: Engine, pipeline: FakePipeline, make_request: MakeRequest, tmp_path: Path
) -> None:
    cancel = threading.Event()

    def cancel_at_two(event: ProgressEvent) -> None:
        if event.step == 2:
            cancel.set()

    with pytest.raises(GenerationCancelledError):
        engine.generate(make_request(steps=9), on_event=cancel_at_two, cancelled=cancel.is_set)

    assert pipeline.steps_run == 2
    assert not list(tmp_path.rglob("*.mp4"))
    assert not engine.ready().busy


def test_a_third_job_is_turned_away_while_one_runs_and_one_waits(
    engine: Engine, pipeline: FakePipeline, make_request: MakeRequest, eventually: Callable[..., None]
) -> None:
    with ThreadPoolExecutor(2) as threads:
        calls = []
        for seed in (1, 2):
            request = make_request(prompt="hold", seed=seed)
            engine.check(request)
            engine.take_seat()
            calls.append(threads.submit(engine.generate_seated, request, on_event=ignore, cancelled=never))
        eventually(pipeline.in_step.is_set, what="the first job is in a step")

        assert engine.ready().busy
        with pytest.raises(EngineBusyError):
            engine.generate(make_request(seed=3), on_event=ignore, cancelled=never)

        pipeline.release.set()
        assert [call.result().jobs_served for call in calls] == [0, 1]
    assert not engine.ready().busy


def test_an_engine_stays_busy_until_its_gpu_thread_is_back(
    engine: Engine, pipeline: FakePipeline, make_request: MakeRequest, eventually: Callable[..., None]
) -> None:
    cancel = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        request = make_request(prompt="hold")
        call = threads.submit(engine.generate, request, on_event=ignore, cancelled=cancel.is_set)
        eventually(pipeline.in_step.is_set, what="the job is in a step")

        cancel.set()  # the caller has given up; the step, like a kernel, goes on

        assert engine.ready().busy
        assert not call.done()
        pipeline.release.set()
        assert isinstance(call.exception(20), GenerationCancelledError)
    assert not engine.ready().busy


def test_a_waiting_job_leaves_the_line_when_it_is_cancelled(
    engine: Engine, pipeline: FakePipeline, make_request: MakeRequest, eventually: Callable[..., None]
) -> None:
    cancel = threading.Event()
    with ThreadPoolExecutor(2) as threads:
        running = threads.submit(
            engine.generate, make_request(prompt="hold"), on_event=ignore, cancelled=never
        )
        eventually(pipeline.in_step.is_set, what="the first job is in a step")
        waiting = threads.submit(
            engine.generate, make_request(seed=2), on_event=ignore, cancelled=cancel.is_set
        )

        cancel.set()

        assert isinstance(waiting.exception(20), GenerationCancelledError)
        pipeline.release.set()
        assert running.result(20).jobs_served == 0


def keyframed(make_request: MakeRequest, path: Path, **changes: Any) -> tuple[GenerateRequest, Gathered]:
    """A request with a first frame, and its file."""
    sources = Sources(folder=ReferenceFolder(path.parent / "engine"), input_root=path.parent)
    asked = make_request(workflow="fl2va", first_frame=path.name, **changes)
    gathered = gather(asked.job, sources)
    return asked.model_copy(update={"job": gathered.job}), gathered


def test_files_are_decoded_while_another_job_has_the_gpu(
    engine: Engine,
    pipeline: FakePipeline,
    make_request: MakeRequest,
    eventually: Callable[..., None],
    tmp_path: Path,
) -> None:
    request, gathered = keyframed(make_request, small_media.picture(tmp_path / "fox.png"))
    with ThreadPoolExecutor(2) as threads, gathered:
        threads.submit(engine.generate, make_request(prompt="hold"), on_event=ignore, cancelled=never)
        eventually(pipeline.in_step.is_set, what="the first job is in a step")

        second = threads.submit(engine.generate, request, gathered, on_event=ignore, cancelled=never)
        eventually(lambda: engine._gpu._work_queue.qsize() == 1, what="the second is decoded and waits")
        pipeline.release.set()
        result = second.result(20)

    assert [item.place for item in result.references] == ["first_frame"]
    assert (result.references[0].width, result.references[0].height) == (64, 32)
    assert result.prompt is not None
    assert result.seconds.reference_prepare is not None
    assert result.seconds.engine_wait is not None
    assert result.seconds.reference_prepare > 0 < result.seconds.engine_wait


def test_a_file_that_cannot_be_decoded_never_reaches_the_gpu_and_frees_the_engine(
    engine: Engine, pipeline: FakePipeline, make_request: MakeRequest, tmp_path: Path
) -> None:
    (tmp_path / "fox.png").write_bytes(b"no picture")
    request, gathered = keyframed(make_request, tmp_path / "fox.png")

    with gathered, pytest.raises(ReferenceUnreadableError, match=r"first_frame \(fox.png\): it is") as caught:
        engine.generate(request, gathered, on_event=ignore, cancelled=never)

    assert job_error(caught.value).code is ErrorCode.REFERENCE_UNREADABLE
    assert (pipeline.steps_run, engine.ready().busy) == (0, False)
    assert engine.generate(make_request(), on_event=ignore, cancelled=never).media is not None


def test_a_disk_that_takes_no_decoded_clip_is_a_clear_state(
    engine: Engine, make_request: MakeRequest, tmp_path: Path
) -> None:
    small_media.clip(tmp_path / "walk.mp4")  # 442,368 bytes as pixels
    asked = make_request(workflow="ref2va", references=[{"kind": "video", "source": "walk.mp4"}], frames=39)
    sources = Sources(folder=ReferenceFolder(tmp_path / "engine"), input_root=tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    with gather(asked.job, sources) as gathered:
        request = asked.model_copy(update={"job": gathered.job})
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))
        try:
            with pytest.raises(ReferenceFolderError, match="make room there") as caught:
                engine.generate(request, gathered, on_event=ignore, cancelled=never)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert job_error(caught.value).retryable
    assert not engine.ready().busy


def test_an_error_of_the_pipeline_frees_the_engine(engine: Engine, make_request: MakeRequest) -> None:
    with pytest.raises(ValueError, match="breaks the pipeline"):
        engine.generate(make_request(prompt="poison"), on_event=ignore, cancelled=never)

    assert not engine.ready().busy
    assert engine.generate(make_request(), on_event=ignore, cancelled=never).media is not None


class OutOfMemoryError(RuntimeError):
    """Named as torch's is."""


@pytest.mark.parametrize(
    ("error", "code", "retryable"),
    [
        (OutOfMemoryError("CUDA out of memory"), ErrorCode.OUT_OF_MEMORY, True),
        (MemoryError(), ErrorCode.OUT_OF_MEMORY, True),
        (WrongCheckpointError(wanted="a", resident="b"), ErrorCode.CHECKPOINT_MISMATCH, False),
        (KeyError("x"), ErrorCode.INTERNAL, True),
    ],
)
def test_every_exception_has_a_code(error: Exception, code: ErrorCode, retryable: bool) -> None:
    told = job_error(error)

    assert (told.code, told.retryable) == (code, retryable)
