"""The object stores: the shared suite on each, and features of one alone."""

from __future__ import annotations

import errno
import itertools
import json
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from tests.support.crash_recorder import CHANGES, Filmed
from tests.support.object_servers import SECRET, OddS3, moto_bucket
from walkit.errors import (
    MissingExtraError,
    ObjectConflictError,
    ObjectDeniedError,
    ObjectExistsError,
    ObjectMissingError,
    ObjectStoreError,
    ObjectThrottledError,
    ObjectUnknownError,
    ObjectUnsupportedError,
    OptionsError,
    StorageError,
)
from walkit.models import CrashingStorage, FaultyStorage
from walkit.models.faults import Operation, OperationName
from walkit.storage import (
    FileObjectStore,
    FileStorage,
    MemoryObjectStore,
    MemoryStorage,
    ObjectFault,
    ObjectRequest,
    ObjectStore,
    Storage,
    StorageOptions,
    open_store,
    prove_conditional_writes,
)
from walkit.storage.interface import ExclusiveNames
from walkit.testing import ObjectStoreTests
from walkit.testing.storage_hooks import Refused


class TestMemory(ObjectStoreTests):
    """The suite as it is."""

    def make_store(self, place: Path) -> ObjectStore:
        return MemoryObjectStore(page_keys=7)

    def reopen(self, store: ObjectStore) -> ObjectStore:
        assert isinstance(store, MemoryObjectStore)
        return store.client()


class TestFiles(ObjectStoreTests):
    """The suite on real files."""

    def make_store(self, place: Path) -> ObjectStore:
        return FileObjectStore(place / "deep" / "objects")

    def reopen(self, store: ObjectStore) -> ObjectStore:
        return FileObjectStore(store.location.removeprefix("objects:"))


class TestFilesInMemory(ObjectStoreTests):
    """The suite on files of a storage that is given."""

    def make_store(self, place: Path) -> ObjectStore:
        return FileObjectStore(CrashingStorage())


class TestS3(ObjectStoreTests):
    """The suite over obstore and moto."""

    race_rounds = 5

    def make_store(self, place: Path) -> ObjectStore:
        self.url, self.options = moto_bucket()
        return open_store(self.url, self.options)

    def reopen(self, store: ObjectStore) -> ObjectStore:
        return open_store(self.url, self.options)


THROTTLED = ObjectFault(before=ObjectThrottledError, status=503, retry_after_s=2.0)


def test_a_plan_decides_each_request() -> None:
    """Fail before, after, late and slowly by a plan: the errors, the state after them and the counts are exact."""
    plan = {
        0: THROTTLED,
        1: ObjectFault(after=ObjectUnknownError),
        3: ObjectFault(late=True),
        4: ObjectFault(delay_s=5),
    }
    slept: list[float] = []
    store = MemoryObjectStore(lambda request: plan.get(request.number), sleep=slept.append)
    with pytest.raises(ObjectThrottledError) as throttled:
        store.put_if_absent("a", b"1")
    assert (throttled.value.status, throttled.value.retry_after_s) == (503, 2.0)
    with pytest.raises(ObjectUnknownError):
        store.put_if_absent("a", b"1")
    assert store.get("a").data == b"1"
    with pytest.raises(ObjectUnknownError):
        store.put_if_absent("b", b"2")
    other = store.client()
    with pytest.raises(ObjectMissingError):
        store.get("b")
    assert (slept, other.requests) == ([5], [])
    store.land()
    assert other.get("b").data == b"2"
    with pytest.raises(ObjectExistsError):
        other.put_if_absent("b", b"3")
    assert store.counts() == {"put_if_absent": 3, "get": 2}
    assert other.requests == [ObjectRequest(0, "get", "b"), ObjectRequest(1, "put_if_absent", "b")]


def test_lists_lag_hide_and_are_missing() -> None:
    """List a store that lags, hides a key, has pages, or cannot: only the lists differ, and each page is a request."""
    store = MemoryObjectStore(list_lag=1, page_keys=2)
    for key in "abcd":
        store.put_if_absent(key, b"x")
    assert {entry.key for entry in store.list_after("")} == {"a", "b", "c"}
    store.delete("a")
    assert {entry.key for entry in store.list_after("")} == {"a", "b", "c", "d"}
    assert store.counts()["list_after"] == 4
    hiding = store.client(lambda request: ObjectFault(hidden=frozenset("b")))
    assert {entry.key for entry in hiding.list_after("", "a")} == {"c", "d"}
    hiding.can_list = False
    with pytest.raises(ObjectUnsupportedError):
        next(hiding.list_after(""))


Expected = dict[str, bytes | None]


def states(store: ObjectStore, keys: str) -> Expected:
    """Return the bytes of each key, or None."""
    found: Expected = {}
    for key in keys:
        try:
            found[key] = store.get(key).data
        except ObjectMissingError:
            found[key] = None
    return found


STEPS: list[tuple[Expected, Callable[[ObjectStore], object]]] = [
    ({"a": None, "b": None}, lambda store: store.put_if_absent("a", b"old")),
    ({"a": b"old", "b": None}, lambda store: store.put_if_match("a", b"new", store.get("a").tag)),
    ({"a": b"new", "b": None}, lambda store: store.put_if_absent("b", b"other")),
    ({"a": b"new", "b": b"other"}, lambda store: store.delete_many(["b", "c"])),
    ({"a": b"new", "b": None}, lambda store: None),
]
"""Objects before a step, and the step."""


def check_rest(place: Path | Storage, before: Expected, after: Expected, where: object) -> None:
    """Check a folder after a death: old or new, and the next process puts and replaces, and leaves no temporary."""
    store = FileObjectStore(place)
    found = states(store, "ab")
    assert found in (before, after), where
    tag = store.put_if_absent("next", b"1")
    assert store.put_if_match("next", b"2", tag) not in ("", tag), where
    assert states(store, "ab") == found, where
    store.close()
    storage = FileStorage(place) if isinstance(place, Path) else place
    assert not [name for name in storage.names() if name.startswith("=put-")], where


def test_a_power_cut_leaves_old_or_new() -> None:
    """Cut the power before each operation of each step, in three ways: old or new, and the acknowledged afterwards."""
    inner = CrashingStorage()
    filmed = Filmed(inner, every_way=True)
    store = FileObjectStore(filmed)
    for (before, step), (after, _) in pairwise(STEPS):
        filmed.running, filmed.images = True, []
        step(store)
        filmed.running = False
        assert len(filmed.images) >= 6
        for where, image in filmed.images:
            check_rest(image, before, after, where)
        check_rest(inner.crash(keep="none"), after, after, step)
    store.close()


class Killed(FaultyStorage):
    """Kills the process before an operation that changes a file."""

    def __init__(self, inner: Storage, at: int) -> None:
        super().__init__(inner)
        self.at = at

    def perform(self, operation: Operation, *how: Any, **else_: Any) -> Any:
        if operation.name in CHANGES:
            self.at -= 1
            if self.at < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().perform(operation, *how, **else_)


# Slow: a process for each operation. By default one step replaces and one removes; the power is cut in all of them.
@pytest.mark.parametrize(
    "number", [pytest.param(n, marks=[pytest.mark.slow] * (n in (0, 2))) for n in range(4)]
)
def test_a_kill_leaves_old_or_new(number: int, tmp_path: Path) -> None:
    """Kill a process before each operation of a step: old or new, the lock is free, and the temporary is removed."""
    (before, step), (after, _) = STEPS[number : number + 2]
    with closing(FileObjectStore(tmp_path / "begin")) as store:
        for _, earlier in STEPS[:number]:
            earlier(store)
    for at in range(100):
        place = tmp_path / str(at)
        if number:
            copytree(tmp_path / "begin", place)
        child = os.fork()
        if not child:
            step(FileObjectStore(Killed(FileStorage(place), at)))
            os._exit(0)
        if os.waitpid(child, 0)[1] == 0:
            break
        check_rest(place, before, after, at)
    assert at >= 2
    check_rest(place, after, after, "not killed")


def test_a_living_process_keeps_its_temporary(tmp_path: Path) -> None:
    """Open a folder whose other user is at work on a put: its temporary stays, its numbers and those here differ."""
    first, second = FileObjectStore(tmp_path), FileObjectStore(tmp_path)
    tag = first.put_if_absent("a", b"1")
    mine = FileStorage(tmp_path).open(f"=put-{int(tag) + 1:016x}", "create")
    other = second.put_if_absent("b", b"1")
    assert int(other) >> 32 == (int(tag) >> 32) + 1
    assert any(name.startswith("=put-") for name in FileStorage(tmp_path).names())
    mine.close()
    first.close()
    second.close()
    with closing(FileObjectStore(tmp_path)) as third:
        third.put_if_absent("c", b"1")
    assert not any(name.startswith("=put-") for name in FileStorage(tmp_path).names())


def test_two_processes_replace_in_turn(tmp_path: Path) -> None:
    """Add 1 to an object from four processes, each again after a Conflict: no addition is lost."""
    with closing(FileObjectStore(tmp_path)) as store:
        store.put_if_absent("n", b"0")
        children = []
        for _ in range(4):
            child = os.fork()
            if not child:
                own = FileObjectStore(tmp_path)
                done = 0
                while done < 25:
                    data, tag = own.get("n")
                    with suppress(ObjectConflictError):
                        own.put_if_match("n", b"%d" % (int(data) + 1), tag)
                        done += 1
                os._exit(0)
            children.append(child)
        assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
        assert store.get("n").data == b"100"


def test_what_a_folder_refuses_is_an_answer(tmp_path: Path) -> None:
    """Fail the operations of a put: Denied, Unknown once the name is there, and a full disk as it is."""
    table: list[tuple[OperationName, int, type[StorageError], bytes | None]] = [
        ("create", errno.EACCES, ObjectDeniedError, None),
        ("create", errno.EROFS, ObjectDeniedError, None),
        ("write", errno.ENOSPC, StorageError, None),
        ("sync", errno.EIO, StorageError, None),
        ("replace", errno.EOPNOTSUPP, StorageError, None),
        ("sync_directory", errno.EIO, ObjectUnknownError, b"1"),
    ]
    faulty = FaultyStorage(FileStorage(tmp_path))
    with closing(FileObjectStore(faulty)) as store:
        store.put_if_absent("first", b"")
        for name, code, kind, left in table:
            faulty.fail(name, errno=code)
            with pytest.raises(StorageError) as refused:
                store.put_if_absent("a", b"1")
            assert type(refused.value) is kind, name
            faulty.clear()
            assert states(store, "a") == {"a": left}
        assert not any(name.startswith("=put-") for name in faulty.names())
        (tmp_path / "strange").write_bytes(b"text")
        (tmp_path / "folder").mkdir()
        with pytest.raises(StorageError, match="no object"):
            store.get("strange")
        assert sorted(entry.key for entry in store.list_after("")) == ["a", "first"]


def test_an_object_that_is_read_after_a_failed_sync_survives_a_power_cut() -> None:
    """Fail the sync of the folder after a put, read the object back, cut the power: it is there, as it was read."""
    faulty = FaultyStorage(CrashingStorage())
    store = FileObjectStore(faulty)
    store.put_if_absent("first", b"")
    faulty.fail("sync_directory", times=2)
    for call in (lambda: store.put_if_absent("a", b"1"), lambda: store.get("a")):
        with pytest.raises(ObjectUnknownError):
            call()
    assert states(store, "a") == {"a": b"1"}
    assert isinstance(faulty.inner, CrashingStorage)
    assert states(FileObjectStore(faulty.inner.crash(keep="none")), "a") == {"a": b"1"}


@pytest.mark.parametrize("kind", [MemoryStorage, FileStorage, FaultyStorage])
def test_a_new_name_is_given_once(kind: type, tmp_path: Path) -> None:
    """Rename to a free name, a taken one, and from a missing one: only a free name is given, and nothing is lost."""
    storage: Storage = MemoryStorage() if kind is MemoryStorage else FileStorage(tmp_path)
    storage = FaultyStorage(storage) if kind is FaultyStorage else storage
    assert isinstance(storage, ExclusiveNames)
    storage.create()
    for name in ("a", "b"):
        storage.open(name, "create").close()
    storage.rename_new("a", "c")
    for source, target, code in (
        ("b", "c", errno.EEXIST),
        ("a", "d", errno.ENOENT),
        ("b", "../x", errno.EINVAL),
    ):
        with Refused(code):
            storage.rename_new(source, target)
    assert storage.names() == ["b", "c"]


def odd_store(odd: OddS3, **options: Any) -> ObjectStore:
    """Return the store of an odd server."""
    return open_store("s3://bucket/log", odd.options | options)


ANSWERS: list[tuple[int, type[StorageError], type[StorageError], type[StorageError] | None]] = [
    (400, ObjectStoreError, ObjectStoreError, ObjectStoreError),
    (403, ObjectDeniedError, ObjectDeniedError, ObjectDeniedError),
    (404, ObjectMissingError, ObjectConflictError, ObjectMissingError),
    (409, ObjectExistsError, ObjectConflictError, ObjectStoreError),
    (412, ObjectExistsError, ObjectConflictError, ObjectStoreError),
    (429, ObjectThrottledError, ObjectThrottledError, None),
    (500, ObjectUnknownError, ObjectUnknownError, None),
    (501, ObjectUnknownError, ObjectUnknownError, None),
    (503, ObjectThrottledError, ObjectThrottledError, None),
]
"""The status of an answer, and the error of a creation, a replacement and a read; None if obstore reads again."""


@pytest.mark.parametrize(("status", "creation", "replacement", "read"), ANSWERS)
def test_each_status_is_one_error(
    status: int,
    creation: type[StorageError],
    replacement: type[StorageError],
    read: type[StorageError] | None,
) -> None:
    """Answer each request by a status: its error, one request for a put, and no secret in the error."""
    with OddS3(lambda method, path: status) as odd:
        store = odd_store(odd)
        calls: list[tuple[type[StorageError] | None, Callable[[], object]]] = [
            (creation, lambda: store.put_if_absent("a", b"1")),
            (replacement, lambda: store.put_if_match("a", b"1", '"tag"')),
            (read, lambda: store.get("a")),
        ]
        for kind, call in calls:
            if kind is not None:
                with pytest.raises(StorageError) as refused:
                    call()
                check_error(refused.value, kind, status)
        assert odd.requests[:2] == ["PUT /bucket/log/a"] * 2
        assert odd.requests[2:] == ["GET /bucket/log/a"] * (read is not None)


def check_error(error: StorageError, kind: type[StorageError], status: int | None) -> None:
    """Check the class of an error and its facts; no text of it, its facts or its traceback shows a secret."""
    assert type(error) is kind, error
    assert isinstance(error, ObjectStoreError)
    assert (error.store, error.key, error.status) == ("s3://bucket/log", "a", status)
    shown = f"{error!r} {vars(error)} {''.join(traceback.format_exception(error))} {pickle.dumps(error)!r}"
    assert SECRET not in shown and "test-key-id" not in shown


def test_a_read_is_tried_again() -> None:
    """Answer a GET by 503, the object, 403, and a deletion by 503: only a GET that was throttled is repeated."""
    answers: list[int | None] = [503, None, 403]
    with OddS3(lambda method, path: answers.pop(0) if method == "GET" else None) as odd:
        store = odd_store(odd)
        tag = store.put_if_absent("a", b"1")
        assert store.get("a") == (b"1", tag)
        with pytest.raises(StorageError) as refused:
            store.get("a")
        check_error(refused.value, ObjectDeniedError, 403)
        assert odd.requests == ["PUT /bucket/log/a"] + ["GET /bucket/log/a"] * 3
    with OddS3(lambda method, path: 503) as odd:
        with pytest.raises(ObjectThrottledError):
            odd_store(odd).delete("a")
        assert odd.requests == ["POST /bucket?delete"]


def test_no_credentials_are_denied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give no credentials, to a machine without any and to a process without obstore: Denied, and the extra's name."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    with OddS3(lambda method, path: 500) as odd:
        options = {name: odd.options[name] for name in ("endpoint", "region")}
        store = open_store("s3://bucket/log", options | {"metadata_endpoint": options["endpoint"]})
        with pytest.raises(ObjectDeniedError, match="NoCredentials") as refused:
            store.put_if_absent("a", b"1")
        check_error(refused.value, ObjectDeniedError, None)
        assert odd.requests == ["PUT /latest/api/token"]
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(MissingExtraError, match=r"\[object\]"):
        open_store("s3://bucket/log")


def test_the_environment_names_a_server_and_allows_it_http(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set endpoint, credentials and AWS_ALLOW_HTTP in the environment: a store without options puts and gets."""
    url, options = moto_bucket()
    for name, value in (options | {"allow_http": "true"}).items():
        monkeypatch.setenv(f"AWS_{name.upper()}", value)
    store = open_store(url)
    store.put_if_absent("a", b"1")
    assert store.get("a").data == b"1"


def test_a_lost_answer_is_unknown() -> None:
    """Close the connection after a put, hold an answer longer than the time-out, refuse connections: Unknown each."""
    release = threading.Event()
    rules = ["lost", "late"]

    def rule(method: str, path: str) -> int | str | None:
        found = rules.pop(0)
        return 500 if found == "late" and release.wait(20) else found

    with OddS3(rule) as odd:
        store = odd_store(odd, timeout="200ms")
        for number in (1, 2):
            with pytest.raises(StorageError) as refused:
                store.put_if_absent("a", b"1")
            check_error(refused.value, ObjectUnknownError, None)
            assert len(odd.requests) == number
        release.set()
    with pytest.raises(StorageError) as refused:
        store.put_if_absent("a", b"1")
    check_error(refused.value, ObjectUnknownError, None)
    assert odd.objects == {"/bucket/log/a": b"1"}


def ignoring(name: str) -> Callable[[str, str], str | None]:
    """Return the rule of a server that ignores one kind of condition, from some put on."""
    puts = itertools.count(1)
    first = {"create": 2, "stale": 4, "absent": 5, "create at once": 6, "tag at once": 8}[name]
    kind = "race" if name.endswith("at once") else "ignore"
    return lambda method, path: kind if method == "PUT" and next(puts) >= first else None


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("create", "creates a key twice,"),
        ("stale", "takes a stale tag,"),
        ("absent", "takes a tag for an absent key,"),
        ("create at once", "creates a key twice at once,"),
        ("tag at once", "takes a tag twice at once,"),
    ],
)
def test_a_store_that_ignores_conditions_is_refused(name: str, what: str) -> None:
    """Prove servers that ignore one condition each: one sentence names it."""
    with OddS3(ignoring(name)) as odd:
        with pytest.raises(ObjectUnsupportedError, match=what) as refused:
            prove_conditional_writes(odd_store(odd), "log")
        assert refused.value.what == "conditional writes"
        assert str(refused.value).startswith("s3://bucket/log ignores the conditions of puts: it ")


@pytest.mark.parametrize("kind", ["memory", "files", "s3"])
def test_a_store_that_keeps_conditions_is_proved(kind: str, tmp_path: Path) -> None:
    """Prove each adapter: no error, and no key is left."""
    url, options = moto_bucket() if kind == "s3" else (f"objects:{tmp_path}", {})
    with closing(MemoryObjectStore() if kind == "memory" else open_store(url, options)) as store:
        prove_conditional_writes(store, "log")
        assert list(store.list_after("")) == []


def test_a_bucket_that_is_missing_is_named() -> None:
    """Put, replace, read and list in a bucket that is not there: Missing, and the message has the store's code."""
    _, options = moto_bucket()
    store = open_store("s3://nowhere/log", options)
    for call in (
        lambda: store.put_if_absent("a", b"1"),
        lambda: store.put_if_match("a", b"1", '"tag"'),
        lambda: store.get("a"),
        lambda: list(store.list_after("")),
    ):
        with pytest.raises(ObjectMissingError, match="NoSuchBucket"):
            call()


def test_the_tag_of_google_is_the_generation() -> None:
    """Create, replace and read at a server with Google's headers: generations, and the same bytes get another one."""
    with OddS3(lambda method, path: None) as odd:
        key: dict[str, Any] = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
        key |= {"gcs_base_url": odd.options["endpoint"], "disable_oauth": True}
        store = open_store("gs://bucket/log", {"service_account_key": json.dumps(key), "allow_http": True})
        assert store.put_if_absent("a", b"1") == "1"
        with pytest.raises(ObjectExistsError):
            store.put_if_absent("a", b"2")
        assert store.put_if_match("a", b"1", "1") == "2"
        with pytest.raises(ObjectConflictError):
            store.put_if_match("a", b"3", "1")
        assert store.get("a") == (b"1", "2")


def test_a_large_object_is_one_put() -> None:
    """Create and replace an object of 11 MiB: it comes back whole, and moto has seen one PUT each, not a multipart."""
    with OddS3(lambda method, path: None) as odd:
        store = odd_store(odd)
        tag = store.put_if_absent("a", bytes(11 << 20))
        store.put_if_match("a", bytes(11 << 20), tag)
        assert odd.requests == ["PUT /bucket/log/a"] * 2


def test_urls_and_options() -> None:
    """Open URLs of each kind, and wrong ones: the store, or an OptionsError without a password; options hide values."""
    assert isinstance(open_store("objects:/some/where"), FileObjectStore)
    for url in ("s3://bucket", "s3://bucket/a/b", "gs://bucket/a", "az://container/a"):
        given = {"account_name": "me"} if url.startswith("az") else {}
        store = open_store(url, given | {"skip_signature": True})
        assert store.location == url and SECRET not in repr(store)
    for bad in (
        f"s3://me:{SECRET}@bucket/a",
        f"s3://b/a?sig={SECRET}",
        "s3://",
        "objects:",
        "ftp://x",
        "/path",
    ):
        with pytest.raises(OptionsError) as refused:
            open_store(bad)
        assert SECRET not in str(vars(refused.value)) + str(refused.value)
    for options in ({"wrong": SECRET}, {"region": "x", "timeout": SECRET}):
        with pytest.raises(OptionsError) as refused:
            open_store("s3://bucket", options)
        assert ("'wrong'" in str(refused.value)) == ("wrong" in options)
        shown = "".join(traceback.format_exception(refused.value))
        assert SECRET not in str(vars(refused.value)) + shown and "storage_options" in shown
    with pytest.raises(OptionsError):
        open_store("objects:/x", {"region": "x"})
    hidden = StorageOptions({"secret_access_key": SECRET})
    assert dict(hidden) == {"secret_access_key": SECRET}
    assert repr(hidden) == f"{hidden}" == "StorageOptions(secret_access_key=***)"
