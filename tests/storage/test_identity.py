"""A store knows itself: one id, whoever asks first and from wherever."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from storage.base import ArtifactStore
from storage.errors import StoreIdentityError
from storage.identity import read_identity, store_identity
from storage.layout import STORE_KEY
from storage.uri import open_store


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
