"""Foreign Python (a finaliser, a signal handler) that runs between two bytecodes of the log's own: no call hangs."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import pytest

import walkit
from tests.commit.starving_calls import STORE_CALLS
from tests.support.logs import tiny
from tests.support.threads import GUARD_S, Task
from walkit._internal.locks import WORK, holds
from walkit.errors import CallbackError, WalkitError
from walkit.models import CrashingStorage
from walkit.storage import Storage
from walkit.storage.address import storage_at

if TYPE_CHECKING:
    from tests.conftest import Checkout

STEP, SLOW_STEP = 331, 7
"""One in so many bytecodes of a call is struck; the first of them moves on with each foreign call."""
STEP_POINTS = 4
"""By default so many bytecodes of each call at most."""


class RunAt:
    """Makes a call in this thread at the n-th bytecode of walkit's code; `reached` is true if it got there."""

    def __init__(self, nth: int, call: Callable[[], object]) -> None:
        self.left, self.call = nth, call
        self.reached = False
        self.error: BaseException | None = None
        self.where = ""

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if "/walkit/" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            self.left -= 1
            if not self.left:
                self.reached, self.where = True, f"{frame.f_code.co_qualname}:{frame.f_lineno}"
                try:
                    self.call()
                except BaseException as error:
                    self.error = error
        return self


def run_at(nth: int, call: Callable[[], object], foreign: Callable[[], object]) -> RunAt:
    """Make `call` with `foreign` at its n-th bytecode, in this thread."""
    at, before = RunAt(nth, foreign), sys.gettrace()
    sys.settrace(at)
    try:
        call()
    except WalkitError:
        pass
    finally:
        sys.settrace(before)
    return at


CALLS: dict[str, Callable[[Any], object]] = {
    "append": lambda log: log.append(b"own"),
    "append by key": lambda log: log.append(b"own", key=b"k", timeout=GUARD_S),
    "append many": lambda log: log.append_many([b"own"] * 3),
    "submit": lambda log: [log.submit(b"own") for _ in range(3)][-1].result(GUARD_S),
    "sync": lambda log: log.sync(),
    "trim": lambda log: log.trim(log.acked_lsn - 10),
    "hold": lambda log: log.hold("one", log.first_lsn).release(),
    "close": lambda log: log.close(),
}
FOREIGN: dict[str, Callable[[Any], object]] = {
    "append": lambda log: log.append(b"foreign"),
    "submit": lambda log: log.submit(b"foreign"),
    "submit text": lambda log: log.submit(bytearray(b"foreign")),
    "sync": lambda log: log.sync(),
}


def opened(folder: Path, in_flight: int) -> walkit.WriteAheadLog:
    """Return a new log with a few records."""
    log = walkit.open(folder / str(len(list(folder.iterdir()))), options=tiny(in_flight=in_flight))
    log.append_many([b"before"] * 20)
    return log


@pytest.mark.parametrize(
    ("call", "foreign", "in_flight"),
    # Slow: half of all triples. The others have each pair.
    [
        pytest.param(call, foreign, in_flight, marks=[pytest.mark.slow] * ((at + of + in_flight) % 2))
        for at, call in enumerate(CALLS)
        for of, foreign in enumerate(FOREIGN)
        for in_flight in (1, 4)
    ],
)
@pytest.mark.parametrize(
    "step",
    [STEP, pytest.param(SLOW_STEP, marks=pytest.mark.slow)],  # some 30,000 points, for minutes
)
def test_foreign_code_at_each_bytecode_hangs_no_call(
    call: str, foreign: str, in_flight: int, step: int, tmp_path: Path
) -> None:
    """Append, submit or sync at bytecodes of each call: it ends, or is refused; submitted records are acknowledged."""
    log, reached = opened(tmp_path, in_flight), 0
    if step == STEP:  # a long call is struck at as many points as a short one
        whole = Task(run_at, 10**6, lambda: CALLS[call](log), lambda: None).result()
        step = max(STEP, (10**6 - whole.left) // STEP_POINTS)
    for nth in range(1 + list(FOREIGN).index(foreign), 100_000, step):
        if log.closed:
            log = opened(tmp_path, in_flight)
        tickets: list[Any] = []
        current = log

        def strike(log: walkit.WriteAheadLog = current, tickets: list[Any] = tickets) -> None:
            tickets.append(FOREIGN[foreign](log))

        at = Task(run_at, nth, lambda log=current: CALLS[call](log), strike).result()
        if not at.reached:
            break
        reached += 1
        assert at.error is None or isinstance(at.error, WalkitError), (at.where, at.error)
        if foreign.startswith("submit"):
            assert not isinstance(at.error, CallbackError), at.where
            for ticket in tickets:
                assert ticket.exception(GUARD_S) is None or log.closed, at.where
        assert log.closed or Task(log.append, b"after").result().last_lsn == log.acked_lsn, at.where
    Task(log.close).result()
    assert reached


STORE_FOREIGN: dict[str, Callable[[walkit.Store], object]] = {
    "put": lambda store: store.put(b"foreign", b"foreign"),
    "submit": lambda store: store.submit(b"foreign", b"foreign"),
    **{name: act for name, act in STORE_CALLS.items() if name not in ("put", "read")},
    "get": lambda store: store.get(b"own"),
    "hold": lambda store: store.log.hold("foreign", store.log.first_lsn).release(),
    "sync": lambda store: store.log.sync(),
    "call back": lambda store: store.submit(b"foreign", b"foreign").add_done_callback(lambda _: None),
}
POINTS = 4
"""At so many bytecodes of each call; the first of them is another with each foreign call."""
SLOW_POINTS, SLOW_PARTS = 900, 6
"""Points of each call in the slow runs, and the tests that share them: a store that is opened 900 times grows slow."""


class Struck:
    """Stores in one place, opened again once they are closed; puts that are acknowledged are counted."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.early: list[str] = []
        """Events that came to a thread which has locks."""
        self.store = self.open()

    def open(self) -> walkit.Store:
        """Open the store, with a few records."""
        store = walkit.Store.open(storage=self.storage, options=tiny(), events=self.told)
        store.put_many([b"%d" % (n % 7) for n in range(20)], [b"before" * 90] * 20)
        return store

    def told(self, name: str, _: dict[str, Any]) -> None:
        if holds(WORK):
            self.early.append(name)

    def strike(self, call: str, foreign: str, nth: int) -> tuple[RunAt, list[Any]]:
        """Make a call with another at its n-th bytecode; return its result."""
        if self.store.closed:
            Task(self.store.close).result()  # another thread may be at it
            self.store = Task(self.open).result()
        store, made = self.store, list[Any]()
        at = Task(
            run_at,
            nth,
            lambda: STORE_CALLS[call](store),
            lambda: made.append(STORE_FOREIGN[foreign](store)),
        ).result()
        return at, made


@pytest.mark.parametrize(
    ("call", "foreign"),
    # Slow: two of three pairs. By default each call is struck by a third of the foreign ones, and each of them strikes.
    [
        pytest.param(call, foreign, marks=[pytest.mark.slow] * ((at + of) % 3 > 0))
        for at, call in enumerate(STORE_CALLS)
        for of, foreign in enumerate(STORE_FOREIGN)
    ],
)
@pytest.mark.parametrize(
    "part",  # of the points; all of them are some 100,000, for most of an hour
    [None, *(pytest.param(part, marks=pytest.mark.slow) for part in range(SLOW_PARTS))],
)
def test_foreign_code_at_each_bytecode_of_a_store_hangs_no_call(
    call: str, foreign: str, part: int | None, tmp_path: Path
) -> None:
    """Call a store at bytecodes of each other call: it ends or is refused, others go on, and no put is lost."""
    storages = [CrashingStorage(), storage_at(tmp_path / "log")]
    if part is None:
        storages = [storages[(len(call) + len(foreign)) % 2]]
    for storage in storages:
        struck = Struck(storage)
        count, acked = 10**6, 0
        whole, _ = struck.strike(call, foreign, count)
        total = count - whole.left
        points, parts = (POINTS, 1) if part is None else (SLOW_POINTS, SLOW_PARTS)
        step = max(total // points, 1)
        first = 1 + list(STORE_FOREIGN).index(foreign) + step * (part or 0)
        for nth in range(first, total, step * parts):
            at, made = struck.strike(call, foreign, nth)
            assert at.error is None or isinstance(at.error, WalkitError), (at.where, at.error)
            store = struck.store
            if foreign == "submit":
                assert not isinstance(at.error, CallbackError), at.where
                assert all(ticket.exception(GUARD_S) is None or store.closed for ticket in made), at.where
            if foreign == "close a store":
                Task(store.close).result()
            if not store.closed:
                acked = Task(store.put, b"after", b"%d" % nth).result().last_lsn
                assert Task(store.get, b"after").result() == b"%d" % nth, at.where
            elif foreign == "put":
                acked = max(acked, *(result.last_lsn for result in made), 0)
        Task(struck.store.close).result()
        assert not struck.early
        with walkit.Store.open(storage=storage) as again:
            assert again.log.acked_lsn >= acked and len(again) >= 7


MAKES_LOCK = re.compile(r"\b(R?Lock|Condition|Semaphore)\(")
MARKS = {"once", "alone", "marked"}
TOOLS = ("bench", "demo", "simulate", "spark", "views", "workload")
"""Rooms beside logs and Stores, whose calls take none of these locks."""
UNMARKED = {
    "_internal/threads.py _end": "a latch: it is opened once, by the thread that ends",
    "commit/*.py lock": "the commit lock: calls ask for its owner first, and foreign records go to an inbox",
    "log/resources.py lock": "the commit lock, on a thread of the closing's own",
    "links/writer.py lock": "the commit lock, on the payload thread",
    "replication/delta/server_feed.py lock": "the commit lock, within a lock that is entered after a mark",
    "events.py *": "they are tried, and waited for only at the end of the process",
    "commit/delivery.py _busy": "it is tried, and never waited for",
    "commit/latches.py _lock": "threads that lead take it, and their calls are refused",
    "log/resources.py _close_lock": "a close on the thread that has it goes to another thread",
    "replication/logs/importer.py _closing": "a close on the thread that has it returns",
    "replication/primary/range_service.py _unpacking": "of the threads of gRPC",
    "replication/primary/session.py _unpacking": "of the threads of gRPC",
    "models/tcp_link.py _lock": "of a cable between processes",
}
"""Locks that are entered without a mark, by file and name, each with its reason."""


def last_name(node: ast.AST) -> str:
    """Return the last name of a dotted expression, of a call that of its function; "" for any other."""
    if isinstance(node, ast.Call):
        node = node.func
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def lock_names(tree: ast.Module) -> set[str]:
    """Return the names that a module gives to locks."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(
                last_name(each) in ("Lock", "RLock", "Condition", "Semaphore")
                for each in ast.walk(node.value)
            ):
                stored = (each for target in targets for each in ast.walk(target))
                found |= {
                    last_name(each) for each in stored if isinstance(getattr(each, "ctx", None), ast.Store)
                }
    return found - {""}


def unmarked(node: ast.AST, names: set[str], marked: bool = False) -> Iterator[str]:
    """Yield the locks that are entered within a node without a mark."""
    if isinstance(node, ast.With):
        for item in node.items:
            marked = marked or last_name(item.context_expr) in MARKS
            is_lock = not isinstance(item.context_expr, ast.Call) and last_name(item.context_expr) in names
            if is_lock and not marked:
                yield last_name(item.context_expr)
    called = node.func if isinstance(node, ast.Call) else None
    if isinstance(called, ast.Attribute) and called.attr == "acquire" and not marked:
        yield from {last_name(called.value)} & names
    for child in ast.iter_child_nodes(node):
        yield from unmarked(child, names, marked and not isinstance(node, ast.FunctionDef))


def test_each_lock_is_entered_after_a_mark_of_its_thread(checkout: Checkout) -> None:
    """Look through all of walkit for locks: each is entered after a mark, or the table says its reason."""
    sources = {path[7:]: text for path, text in checkout.files(".py").items() if path.startswith("walkit/")}
    makers = [
        text for path, text in sources.items() if not path.startswith(TOOLS) and MAKES_LOCK.search(text)
    ]
    names = {"lock"}.union(*(lock_names(ast.parse(text)) for text in makers))
    assert len(names) > 15
    enters = re.compile(rf"\b({'|'.join(names)})(:|,|\.acquire)")
    enterers = {p: text for p, text in sources.items() if not p.startswith(TOOLS) and enters.search(text)}
    trees = {path: ast.parse(text) for path, text in enterers.items()}
    found = {f"{path} {name}" for path, tree in trees.items() for name in unmarked(tree, names)}
    excused = {each for each in found if any(fnmatch(each, pattern) for pattern in UNMARKED)}
    assert sorted(found - excused) == []
    assert [pattern for pattern in UNMARKED if not any(fnmatch(each, pattern) for each in found)] == []
