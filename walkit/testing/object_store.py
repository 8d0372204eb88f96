"""The conformance suite of `walkit.storage.ObjectStore`: the sentences of its contract.

An adapter's test module is inheritance::

    class TestMyStore(walkit.testing.ObjectStoreTests):
        def make_store(self, place):
            return MyStore(place)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from secrets import token_bytes

from walkit.errors import (
    ObjectConflictError,
    ObjectExistsError,
    ObjectMissingError,
    ObjectRangeError,
    ObjectStoreError,
    OptionsError,
    StorageError,
)
from walkit.storage import Buffer, ObjectStore

BAD_KEYS = ("", "/", "/a", "a/", "a//b", ".", "a/../b", "a\0b")
THREADS = 8


def refused(kind: type[Exception], call: Callable[..., object], *arguments: object) -> Exception:
    """Return the error of this kind that a call raises; AssertionError if it raises none."""
    try:
        call(*arguments)
    except kind as error:
        return error
    raise AssertionError(f"nothing was raised; wanted {kind.__name__}")


class ObjectStoreTests(ABC):
    """The tests of each object store. `place` is an empty folder for the test's own use."""

    race_rounds = 20

    @abstractmethod
    def make_store(self, place: Path) -> ObjectStore:
        """Return a store without objects; the test closes it."""

    def reopen(self, store: ObjectStore) -> ObjectStore:
        """Return another opening of the same objects, as another process has it; only to read from."""
        return store

    def opened(self, place: Path) -> ObjectStore:
        """Return a store without objects, to be closed after the test."""
        self._store = self.make_store(place)
        return self._store

    def teardown_method(self) -> None:
        """Close the store of the test (called by pytest)."""
        self._store.close()

    def test_create_then_read(self, tmp_path: Path) -> None:
        """Put objects of several sizes and kinds of buffers: `get` of another opening has the bytes and the tag."""
        store = self.opened(tmp_path)
        kinds: tuple[Buffer, ...] = (b"", bytes(range(256)) * 5000, bytearray(b"ab"), memoryview(b"cd"))
        for number, data in enumerate(kinds):
            tag = store.put_if_absent(f"a/b{number}", data)
            assert tag and tuple(self.reopen(store).get(f"a/b{number}")) == (bytes(data), tag)

    def test_a_key_is_created_once(self, tmp_path: Path) -> None:
        """Create a key twice, and again after its deletion: Exists, the first bytes stay, then a new tag."""
        store = self.opened(tmp_path)
        tag = store.put_if_absent("key", b"first")
        error = refused(ObjectExistsError, store.put_if_absent, "key", b"second")
        assert isinstance(error, ObjectStoreError) and (error.key, error.store) == ("key", store.location)
        assert store.get("key") == (b"first", tag)
        store.delete("key")
        assert store.put_if_absent("key", b"third") != tag

    def test_a_tag_is_good_once(self, tmp_path: Path) -> None:
        """Replace by tag, by the stale tag, by a foreign one, and for an absent key: only the first succeeds."""
        store = self.opened(tmp_path)
        first = store.put_if_absent("key", b"1")
        second = store.put_if_match("key", b"2", first)
        assert second != first and store.get("key") == (b"2", second)
        other = store.put_if_absent("other", b"other")
        for key, tag in (("key", first), ("key", other), ("absent", second)):
            error = refused(ObjectConflictError, store.put_if_match, key, b"no", tag)
            assert isinstance(error, ObjectStoreError) and error.key == key
        assert store.get("key") == (b"2", second)
        refused(ObjectMissingError, store.get, "absent")
        store.delete("key")
        refused(ObjectConflictError, store.put_if_match, "key", b"3", second)

    def test_a_missing_object_is_missing(self, tmp_path: Path) -> None:
        """Read, cut and delete keys that are absent, also below an object: Missing for reads, nothing for deletions."""
        store = self.opened(tmp_path)
        store.put_if_absent("a/b", b"x")
        for key in ("a", "b", "a/c", "ab"):
            refused(ObjectMissingError, store.get, key)
            refused(ObjectMissingError, store.get_range, key, 0, 1)
            store.delete(key)
        store.delete_many(["a", "c"])
        store.delete_many([])
        assert store.get("a/b").data == b"x"

    def test_ranges(self, tmp_path: Path) -> None:
        """Ranges within, over and beyond the end: the bytes that are there, or one typed answer."""
        store = self.opened(tmp_path)
        data = bytes(range(100))
        tag = store.put_if_absent("key", data)
        store.put_if_absent("empty", b"")
        for start, stop in ((0, 1), (0, 100), (99, 100), (50, 1000), (0, 10**12)):
            assert store.get_range("key", start, stop) == (data[start:stop], tag)
        for key, start in (("key", 100), ("key", 101), ("key", 10**12), ("empty", 0)):
            refused(ObjectRangeError, store.get_range, key, start, start + 5)
        for start, stop in ((0, 0), (5, 5), (6, 5), (-1, 5)):
            refused(OptionsError, store.get_range, "key", start, stop)

    def test_lists(self, tmp_path: Path) -> None:
        """List folders of keys, after keys, in no order: each object once, with its size and tag."""
        store = self.opened(tmp_path)
        keys = [f"log/objects/{number:020}" for number in (1, 2, 3, 10)]
        keys += ["log/manifest", "logs/x", "other", "log-2/y"]
        tags = {key: store.put_if_absent(key, key.encode()) for key in keys}
        table = [
            ("", "", keys),
            ("log", "", [k for k in keys if k.startswith("log/")]),
            ("log/objects", keys[1], [keys[2], keys[3]]),
            ("log/objects", keys[3], []),
            ("log/objects", "log/objects/00000000000000000002x", [keys[2], keys[3]]),
            ("log", "log/n", keys[:4]),
            ("nowhere", "", []),
            ("log/manifest", "", []),
        ]
        for prefix, after, expected in table:
            found = list(self.reopen(store).list_after(prefix, after))
            assert sorted(found) == sorted((k, len(k), tags[k]) for k in expected), (prefix, after)

    def test_deletions(self, tmp_path: Path) -> None:
        """Delete one object, and many at once: they are gone for reads and lists, and the others stay."""
        store = self.opened(tmp_path)
        for number in range(30):
            store.put_if_absent(f"a/{number}", b"x")
        store.delete("a/3")
        store.delete_many([f"a/{number}" for number in range(1, 30)])
        refused(ObjectMissingError, store.get, "a/3")
        assert [entry.key for entry in store.list_after("a")] == ["a/0"]

    def test_keys_stay_within_the_store(self, tmp_path: Path) -> None:
        """Give bad keys to each method: StorageError, and nothing is put; odd characters are kept."""
        store = self.opened(tmp_path)
        for key in BAD_KEYS:
            for method, more in (
                (store.put_if_absent, (b"x",)),
                (store.put_if_match, (b"x", "tag")),
                (store.get, ()),
                (store.get_range, (0, 1)),
                (store.delete, ()),
            ):
                refused(StorageError, method, key, *more)
            refused(StorageError, store.delete_many, ["good", key])
        odd = ["a b/ü%2F", "a b/=x,~+&?#", "a b/%", "A B/x"]
        for key in odd:
            store.put_if_absent(key, key.encode())
        assert sorted(entry.key for entry in store.list_after("")) == sorted(odd)
        assert all(store.get(key).data == key.encode() for key in odd)

    def test_one_of_many_creators_wins(self, tmp_path: Path) -> None:
        """Create one key from eight threads, in rounds: one succeeds, the others get Exists, its bytes are there."""
        store = self.opened(tmp_path)
        with ThreadPoolExecutor(THREADS) as pool:
            for turn in range(self.race_rounds):
                self._one_winner(pool, f"race/{turn}", store.put_if_absent, ObjectExistsError, store)

    def test_one_of_many_replacers_wins(self, tmp_path: Path) -> None:
        """Replace one object by one tag from eight threads, in rounds: one succeeds, the others get Conflict."""
        store = self.opened(tmp_path)
        tag = store.put_if_absent("key", b"start")
        with ThreadPoolExecutor(THREADS) as pool:
            for _ in range(self.race_rounds):
                put = partial(store.put_if_match, tag=tag)
                tag = self._one_winner(pool, "key", put, ObjectConflictError, store)

    def _one_winner(
        self,
        pool: ThreadPoolExecutor,
        key: str,
        put: Callable[[str, bytes], str],
        lost: type[ObjectStoreError],
        store: ObjectStore,
    ) -> str:
        # The same bytes again could have the same tag.
        data_of = [token_bytes(8) for _ in range(THREADS)]
        tries = {data: pool.submit(put, key, data) for data in data_of}
        errors = {data: each.exception() for data, each in tries.items()}
        won = [data for data, error in errors.items() if error is None]
        assert len(won) == 1, errors
        assert all(isinstance(error, lost) for error in errors.values() if error is not None), errors
        found = self.reopen(store).get(key)
        assert found == (won[0], tries[won[0]].result())
        return found.tag
