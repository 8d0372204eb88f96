"""The ports of a world: its storage, locks and gRPC do what those of a machine do, by the same tests."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import grpc
import pytest

from walkit.config import LogOptions
from walkit.errors import GapError, StorageError
from walkit.replication.delta.loader import RangeLoader, Reached
from walkit.replication.delta.messages import DeltaEnd
from walkit.replication.logs.source import StoredSource
from walkit.segments.manifest_store import load_manifest
from walkit.simulate.host import hosted
from walkit.simulate.runner import Process, Runner
from walkit.simulate.world_disk import Disk, DiskStorage
from walkit.simulate.world_link import WorldGrpc
from walkit.simulate.world_locks import Lock, Queue, RLock
from walkit.simulate.world_network import Network
from walkit.store import Store

PORT = 7001


def new_disk() -> tuple[Disk, DiskStorage]:
    """Return a disk, and how a process sees it."""
    runner = Runner(0)
    disk = Disk("disk", runner, Random(0))
    return disk, DiskStorage(disk, Process("process", runner).start())


def test_a_load_passes_a_segment_that_was_removed_meanwhile() -> None:
    """Load a range, trim it away, cut the power of the disk: one load fails, the next one raises a GapError."""
    disk, storage = new_disk()
    with Store.open(None, LogOptions(segment_bytes=1 << 16), storage=storage) as store:
        for number in range(40):
            store.put(b"key", b"%d" % number * 2000)
        loader, log = RangeLoader(StoredSource(storage), load_manifest(storage).log_id), store.log
        known = DeltaEnd(log.durable_lsn, log.parts.core.durable_position)
        assert loader.load(1, 2, known, Reached(0, 0)).end.lsn >= 2
        loader.keep_tail(log.parts.contents.durable_view())  # the segment that is written now
        before = loader.tail
        assert before is not None
        for number in range(40):
            store.put(b"key", b"%d" % number * 2000)
        store.checkpoint()
    disk.free()
    first = before.segment.first_lsn
    with pytest.raises(StorageError):
        loader.load(first, first, known, Reached(0, 0))
    with pytest.raises(GapError):
        loader.load(first, first, known, Reached(0, 0))


def primitives(
    new_lock: Callable[[], Any], new_rlock: Callable[[], Any], new_queue: Callable[[], Any]
) -> list[Any]:
    """Return what locks and queues answer, one thread after the other."""
    lock, rlock, items = new_lock(), new_rlock(), new_queue()
    seen: list[Any] = [
        lock.acquire(),
        lock.acquire(blocking=False),
        lock.acquire(timeout=0.01),
        lock.locked(),
    ]
    lock.release()
    seen += [lock.locked(), rlock.acquire(), rlock.acquire(), rlock._is_owned()]
    rlock.release()
    seen.append(rlock._is_owned())
    rlock.release()
    seen.append(rlock._is_owned())
    for wrong in (lock.release, rlock.release):
        with pytest.raises(RuntimeError):
            wrong()
    items.put(1)
    items.put(2)
    seen += [items.qsize(), items.get(), items.get_nowait(), items.empty()]
    with pytest.raises(queue.Empty):
        items.get(timeout=0.01)
    with pytest.raises(queue.Empty):
        items.get_nowait()
    return seen


def test_locks_and_queues_answer_as_pythons() -> None:
    """Take, free and time out the locks and queues of Python and of a world: the same answers."""
    found: list[Any] = []

    here = Runner(1)
    life = Process("process", here).start()
    mine = [lambda: Lock(here), lambda: RLock(here), lambda: Queue(here)]
    here.spawn(life, lambda: found.extend(primitives(*mine)), "work")
    while here.step(1_000):
        pass
    assert found == primitives(threading.Lock, threading.RLock, queue.SimpleQueue)


def served(module: Any, executor: Any, listen: str) -> tuple[Any, int]:
    """Serve calls that echo, refuse, or end early, by this gRPC."""

    def serve(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        for data in requests:
            if data == b"abort":
                context.abort(grpc.StatusCode.PERMISSION_DENIED, "not you")
            if data == b"end":
                return
            yield data * 2

    handlers = {"Echo": module.stream_stream_rpc_method_handler(serve)}
    server = module.server(executor)
    server.add_generic_rpc_handlers((module.method_handlers_generic_handler("test", handlers),))
    port = server.add_insecure_port(listen)
    server.start()
    return server, port


def conversation(module: Any, executor: Any, listen: str) -> list[Any]:
    """Return what a client sees of each kind of call and end."""
    server, port = served(module, executor, listen)
    channel = module.insecure_channel(f"127.0.0.1:{port}")
    call = channel.stream_stream("/test/Echo")
    seen: list[Any] = [
        list(call(iter([b"a", b"b"]), metadata=())),
        list(call(iter([b"a", b"end", b"b"]), metadata=())),
    ]
    answers = iter(call(iter([b"a", b"abort"]), metadata=()))
    seen.append(next(answers))
    with pytest.raises(module.RpcError) as refused:
        next(answers)
    seen.append((refused.value.code(), refused.value.details()))
    ask = channel.unary_unary("/test/Echo")
    seen.append(ask(b"once", timeout=5, metadata=()))
    with pytest.raises(module.RpcError) as caught:
        ask(b"abort", timeout=5, metadata=())
    seen.append(caught.value.code())
    channel.close()
    other = module.insecure_channel(f"127.0.0.1:{port + 1}")
    with pytest.raises(module.RpcError):
        other.unary_unary("/test/Echo")(b"a", timeout=0.5, metadata=())
    if module is grpc:
        server.stop(grace=0).wait()
    return seen


def test_a_conversation_is_the_same_over_grpc_and_over_the_worlds() -> None:
    """Echo, end early, abort, ask once, and call a port without a server: both clients see the same."""
    found: list[Any] = []
    runner = Runner(3)
    process = Process("process", runner)
    module = WorldGrpc(Network(runner, 3, {PORT: process, PORT + 1: Process("down", runner)}))
    listen = f"[::]:{PORT}"
    with hosted(runner, 3, module):
        talk = lambda: found.extend(conversation(module, None, listen))  # noqa: E731
        runner.spawn(process.start(), talk, "work")
        while runner.step(60_000):
            pass
        process.life.kill()
    with ThreadPoolExecutor(2) as executor:
        assert found == conversation(grpc, executor, "127.0.0.1:0")
