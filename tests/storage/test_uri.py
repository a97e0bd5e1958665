"""Storage addresses."""

import subprocess
import sys
from pathlib import Path

import pytest

from storage.errors import StorageAddressError
from storage.local import LocalStore
from storage.uri import folder_of, open_store


@pytest.mark.parametrize("form", ["{}", "file://{}", "file://localhost{}", "FILE://{}"])
def test_a_folder_or_a_file_address_opens_the_same_store(tmp_path: Path, form: str) -> None:
    store = open_store(form.format(tmp_path))

    assert isinstance(store, LocalStore)
    assert store.root == tmp_path.resolve()
    assert store.url == f"file://{tmp_path.resolve()}"


def test_a_relative_folder_is_taken_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert open_store("./outputs").url == f"file://{tmp_path.resolve()}/outputs"


def test_an_address_with_escapes_is_a_folder_with_their_characters(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/my%20films")

    assert store.locate("a") == f"{tmp_path.resolve()}/my films/a"
    assert open_store(store.url).url == store.url


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3:/bucket/prefix", "'://' is missing"),
        ("file:/folder", "'://' is missing"),
        ("1x://host/x", "cannot be read"),
        ("http://host/x", "no storage speaks 'http'"),
        ("file://otherhost/folder", "file:///absolute/folder"),
        ("file://relative", "file:///absolute/folder"),
        ("file:///a?x=1", "file:///absolute/folder"),
        ("", "empty"),
        ("a\0b", "NUL"),
        ("file:///a%00b", "NUL"),
        ("~nosuchuser/films", "names no user"),
        ("x" * 256, "too long"),
        ("a/" * 2_100, "too long"),
        ("file:///tmp/" + "x" * 256, "too long"),
    ],
)
def test_another_address_is_refused_with_a_sentence(url: str, message: str) -> None:
    with pytest.raises(StorageAddressError, match=message):
        open_store(url)


@pytest.mark.parametrize("form", ["{}", "{}/below", "file://{}"])
def test_a_link_that_leads_to_itself_is_no_store(tmp_path: Path, form: str) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")

    for act in (open_store, folder_of):
        with pytest.raises(StorageAddressError, match="leads to itself"):
            act(form.format(tmp_path / "a"))


def test_the_folder_of_a_user_is_written_with_a_tilde(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))

    assert folder_of("~/films") == tmp_path / "films"
    assert folder_of("file:///~/films") == Path("/~/films")


def test_a_bucket_address_opens_a_bucket_without_reaching_it() -> None:
    store = open_store("s3://bucket/films?endpoint=http://127.0.0.1:1")

    assert store.url == "s3://bucket/films?endpoint=http://127.0.0.1:1"


def test_a_folder_is_not_sought_in_a_bucket() -> None:
    with pytest.raises(StorageAddressError, match="is no folder"):
        folder_of("s3://bucket/films")


def test_a_folder_store_loads_no_boto3() -> None:
    script = (
        "import sys; from storage.uri import open_store; open_store('x'); print('botocore' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout == "False\n"
