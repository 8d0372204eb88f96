"""Reading ahead: order, bound, errors in their place, and an end of the thread whatever happens."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import suppress
from itertools import count

import pytest

from tests.support.interrupts import Strike
from tests.support.threads import wait_until
from walkit.state.replay import prefetched


def alive() -> list[threading.Thread]:
    """The threads that read ahead now."""
    return [thread for thread in threading.enumerate() if thread.name == "walkit-read-ahead"]


def test_items_come_in_order_and_the_thread_ends() -> None:
    """All items, None and nothing at all too, come as they were; no thread stays."""
    assert list(prefetched(iter(range(1000)), 3)) == list(range(1000))
    assert list(prefetched(iter([None]), 1)) == [None]
    assert list(prefetched(iter(()), 1)) == []
    assert not alive()


def test_an_error_is_raised_after_the_items_before_it() -> None:
    """The iterator's error reaches the caller after every earlier item."""

    def items() -> Generator[int]:
        yield from (1, 2)
        raise ValueError("third")

    drawn = prefetched(items(), 8)
    assert [next(drawn), next(drawn)] == [1, 2]
    with pytest.raises(ValueError, match="third"):
        next(drawn)
    assert not alive()


def test_an_interrupt_at_any_point_ends_it() -> None:
    """Draw five items with a bound of one, and strike each point in turn: no hang, and the thread ends."""
    for number in count(1):
        struck = Strike(number)
        with suppress(KeyboardInterrupt):
            struck.run(lambda: list(prefetched(iter(range(5)), 1)))
        wait_until(lambda: not alive())
        if not struck.where:
            break
    assert number > 50, "points were found"


def test_no_more_than_the_bound_is_drawn_and_closing_ends_it() -> None:
    """With one item taken, at most two more and the one under way are drawn; closing closes the iterator, too."""
    drawn_to: list[int] = []
    closed = threading.Event()

    def items() -> Generator[int]:
        try:
            for number in range(1_000_000):
                drawn_to.append(number)
                yield number
        finally:
            closed.set()

    ahead = prefetched(items(), 2)
    assert next(ahead) == 0
    ahead.close()
    assert closed.is_set() and len(drawn_to) <= 4
    assert not alive()
