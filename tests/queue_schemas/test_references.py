"""What a job says about its files: where they lie, how many there are, and what of it is its identity."""

import pytest

from queue_schemas.errors import InvalidRequestError
from queue_schemas.jobs import build_job
from queue_schemas.references import MediaSource

HASH = "ab" * 32
KEY = f"references/{HASH}.png"
LINK = "https://example.org/fox.png"


def job_with(*references, **fields):
    return build_job({"prompt": "a fox", "seed": 1, "references": list(references), **fields}, checkpoint="c")


def of_kind(kind, number=0):
    return {"kind": kind, "source": f"references/{number:064x}.bin"}


def test_a_stored_key_tells_its_hash_and_only_the_hash_is_hashed():
    stored = job_with({"kind": "image", "source": KEY})
    linked = job_with({"kind": "image", "source": LINK, "sha256": HASH})
    assert stored.references[0].sha256 == HASH
    assert stored.job_id == linked.job_id
    assert "source" not in stored.canonical_json()


def test_options_of_a_reference_are_part_of_the_identity():
    plain = job_with({"kind": "video", "source": KEY})
    silent = job_with({"kind": "video", "source": KEY, "audio": "off"})
    dubbed = job_with({"kind": "video", "source": KEY, "audio": f"references/{'cd' * 32}.wav"})
    assert len({plain.job_id, silent.job_id, dubbed.job_id}) == 3
    assert [medium.place for medium in dubbed.media] == ["references[0]", "references[0].audio"]


def test_what_nobody_has_read_has_no_identity_yet():
    job = job_with({"kind": "image", "source": "fox.png"})
    with pytest.raises(InvalidRequestError, match=r"references\[0\]: fox.png has no sha256 yet"):
        _ = job.job_id
    settled = job.with_media(lambda medium: MediaSource(source=KEY, sha256=HASH))
    assert settled.job_id == job_with({"kind": "image", "source": KEY}).job_id


def test_a_keyframe_may_be_a_plain_text_and_names_the_workflow():
    job = build_job({"prompt": "a fox", "last_frame": KEY}, checkpoint="c")
    assert job.workflow == "fl2va"
    assert [(medium.place, medium.sha256) for medium in job.media] == [("last_frame", HASH)]
    moved = job.with_media(lambda medium: MediaSource(source=LINK, sha256=medium.sha256))
    assert moved.last_frame.source == LINK
    assert moved.job_id == job.job_id


@pytest.mark.parametrize(
    ("references", "said"),
    [
        ([of_kind("image", n) for n in range(10)], "10 references of kind image; at most 9"),
        ([of_kind("video", n) for n in range(4)], "4 references of kind video; at most 3"),
        (
            [of_kind("image"), *(of_kind("audio", n) for n in range(4))],
            "4 references of kind audio; at most 3",
        ),
        (
            [
                *(of_kind("image", n) for n in range(9)),
                *(of_kind("video", n) for n in range(3)),
                of_kind("audio"),
            ],
            "13 references; at most 12",
        ),
        ([of_kind("audio")], "sounds alone are no reference"),
        ([{**of_kind("image"), "audio": "off"}], "audio is for clips"),
        ([{**of_kind("video"), "size": "max"}], "size is for pictures"),
        ([{**of_kind("video"), "audio": False}], "expected auto, off or a file"),
        ([{**of_kind("video"), "audio": {}}], r"^field 'references.0.audio.source' is missing$"),
        ([{**of_kind("video"), "audio": {"source": 1}}], "^references.0.audio.source: Input should be"),
        ([{**of_kind("video"), "audio": {"source": KEY, "sha256": "x"}}], "^references.0.audio.sha256: "),
        ([{**of_kind("video"), "audio": {"source": KEY, "kind": 1}}], "^unknown field '.*audio.kind'$"),
        ([{**of_kind("video"), "audio": ""}], "^references.0.audio.source: a source has 1 to 2,000"),
        ([{**of_kind("image"), "weight": 0.5}], "^unknown field 'references.0.weight'$"),
        ([{"kind": "image", "source": "http://example.org/a.png"}], "http:// is not read"),
        ([{"kind": "image", "source": "file:///etc/passwd"}], "file:// is not read"),
        ([{"kind": "image", "source": ""}], "a source has 1 to 2,000 characters"),
        ([{"kind": "image", "source": "a\nb"}], "unprintable"),
        ([{"kind": "image", "source": KEY, "sha256": "00" * 32}], "is not the one that"),
        ([{"kind": "text", "source": KEY}], "kind"),
    ],
)
def test_what_is_refused_says_why(references, said):
    with pytest.raises(InvalidRequestError, match=said):
        job_with(*references)


def test_diffusers_conventions_leave_no_choice_of_size():
    with pytest.raises(InvalidRequestError, match="short edge of 2048"):
        job_with({"kind": "image", "source": KEY, "size": "max"}, conventions="diffusers")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"workflow": "t2va", "references": [of_kind("image")]}, "workflow t2va takes no references; leave"),
        ({"workflow": "ref2va", "last_frame": KEY}, "workflow ref2va takes no last_frame; leave"),
        ({"references": []}, "references names no file; name one, or leave it out"),
        ({"first_frame": None}, "first_frame names no file"),
    ],
)
def test_files_that_no_workflow_or_another_takes_are_told_as_such(fields, said):
    with pytest.raises(InvalidRequestError, match=said):
        build_job({"prompt": "a fox", **fields}, checkpoint="c")


def test_a_workflow_that_is_null_is_inferred():
    assert build_job({"prompt": "a", "workflow": None, "last_frame": KEY}, checkpoint="c").workflow == "fl2va"


def test_workflows_without_their_files_are_refused():
    with pytest.raises(InvalidRequestError, match="at least one reference"):
        build_job({"prompt": "a fox", "workflow": "ref2va"}, checkpoint="c")
    with pytest.raises(InvalidRequestError, match="a first_frame, a last_frame or both"):
        build_job({"prompt": "a fox", "workflow": "fl2va"}, checkpoint="c")


def test_a_message_shows_no_query_of_a_link() -> None:
    job = job_with({"kind": "image", "source": "https://example.org/fox.png?signature=secret#secret"})
    with pytest.raises(InvalidRequestError) as caught:
        _ = job.job_id
    assert "https://example.org/fox.png has no sha256" in str(caught.value)
    assert "secret" not in str(caught.value)
