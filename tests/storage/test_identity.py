"""A store knows itself: one id, whoever asks first and from wherever."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from storage.base import ArtifactStore
from storage.errors import StorageUnavailableError, StoreIdentityError
from storage.identity import read_identity, store_identity
from storage.layout import STORE_KEY
from storage.local import LocalStore
from storage.uri import open_known_store, open_store


def test_a_store_gets_an_id_once_and_keeps_it(store: ArtifactStore, store_url: str) -> None:
    assert read_identity(store) is None

    first = store_identity(store)

    assert len(first) == 32
    assert store_identity(store) == first
    assert read_identity(open_store(store_url)) == first


def test_of_many_that_ask_at_once_all_hear_the_same_id(store_url: str) -> None:
    stores, together = [open_store(store_url) for _ in range(6)], Barrier(6)

    def ask(store: ArtifactStore) -> str:
        together.wait(timeout=60)
        return store_identity(store)

    with ThreadPoolExecutor(max_workers=6) as pool:
        heard = set(pool.map(ask, stores))

    assert heard == {store_identity(open_store(store_url))}


def test_two_stores_have_two_ids(store: ArtifactStore, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = open_store(str(tmp_path_factory.mktemp("other")))

    assert store_identity(store) != store_identity(other)


@pytest.mark.parametrize("content", [b"", b"{}", b'{"store": "x"}', b"\xff", b"[" * 5000])
def test_a_foreign_file_under_the_name_is_an_error_with_a_remedy(
    store: ArtifactStore, content: bytes
) -> None:
    store.put_bytes(STORE_KEY, content)

    with pytest.raises(StoreIdentityError, match=r"holds something else: name another folder or prefix"):
        store_identity(store)
    assert store.read_bytes(STORE_KEY, limit_bytes=10_000) == content


def test_fields_of_a_later_version_do_not_disturb(store: ArtifactStore) -> None:
    store.put_bytes(STORE_KEY, b'{"schema_version": 1, "store": "' + b"ab" * 16 + b'", "name": "attic"}')

    assert store_identity(store) == "ab" * 16


@pytest.mark.parametrize("leave", [lambda place: None, Path.mkdir])
def test_a_known_store_that_is_gone_is_away_and_not_made_anew(
    tmp_path: Path, leave: Callable[[Path], object]
) -> None:
    place, film = tmp_path / "store", tmp_path / "film"
    film.write_bytes(b"film")
    store = open_known_store(str(place), identity=store_identity(open_store(str(place))))
    assert store.put_if_absent("a", b"1")
    place.rename(tmp_path / "away")
    leave(place)
    acts: list[Callable[[], object]] = [
        lambda: store.put_bytes("b", b"1"),
        lambda: store.put_file("b", film),
        lambda: store.put_if_absent("b", b"1"),
        lambda: store.read_bytes("a", limit_bytes=10),
        store.conditional_writes,
    ]

    for act in acts:
        with pytest.raises(StorageUnavailableError, match=r"no store\.json, so the store .* is not there"):
            act()

    assert not place.exists() or not list(place.iterdir())
    with pytest.raises(
        StorageUnavailableError, match="this folder is gone"
    ):  # between the look and the write
        LocalStore(tmp_path / "gone").existing().put_bytes("a/b", b"1")


def test_another_store_in_the_place_of_the_known_one_is_no_store(
    store: ArtifactStore, store_url: str
) -> None:
    store_identity(store)

    with pytest.raises(StorageUnavailableError, match="not 00000000: mount that one"):
        open_known_store(store_url, identity="0" * 32).put_bytes("a", b"1")
