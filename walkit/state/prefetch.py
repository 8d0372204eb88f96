"""Reading ahead: an iterator that is drawn from by another thread, a bounded number of items in advance."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from queue import SimpleQueue
from typing import TypeVar, cast

from walkit._internal.interrupts import uninterrupted
from walkit._internal.threads import LogThread

T = TypeVar("T")

END = object()


def prefetched(items: Iterator[T], depth: int) -> Generator[T]:
    """Yield the items of `items`, of which a thread has up to `depth` ready; raises what it raises, where it raises.

    Worth it where drawing an item releases the interpreter's lock, as reading and checksums of large frames do. The
    thread ends with the items, or when this generator is closed; `items` is closed by it then, if it can be.
    """
    ready: SimpleQueue[object] = SimpleQueue()
    room: SimpleQueue[None] = SimpleQueue()
    """One item for each that may be drawn. A Semaphore is Python code: Ctrl-C in it can leave its lock taken."""
    for _ in range(depth):
        room.put(None)
    ended = False
    failure: BaseException | None = None

    def draw() -> None:
        nonlocal failure
        try:
            while room.get() is None and not ended:
                item = next(items, END)
                ready.put(item)
                if item is END:
                    return
        except BaseException as error:  # noqa: BLE001 - raised where the items are taken
            failure = error
        finally:
            if isinstance(items, Generator):
                items.close()
            ready.put(END)

    thread = LogThread(target=draw, name="walkit-read-ahead", daemon=True)
    try:
        with uninterrupted():
            thread.start()
        while (item := ready.get()) is not END:
            yield cast(T, item)
            del item
            room.put(None)
        if failure is not None:
            raise failure
    finally:
        ended = True
        room.put(None)
        if thread.ident is not None:
            thread.join()
