"""Two writers on one object store: whichever request of the first is late, nothing that was acknowledged is lost."""

from __future__ import annotations

import threading

import pytest

from tests.objects.races import (
    ACKED,
    PAUSED,
    Pause,
    check_history,
    objects_of,
    paused_at_each,
    started,
    store_with,
    write,
)
from walkit.errors import (
    ObjectConflictError,
    ObjectExistsError,
    ObjectStoreError,
    ObjectThrottledError,
    ObjectUnknownError,
)
from walkit.storage.object_memory import MemoryObjectStore, ObjectFault, ObjectRequest


@PAUSED
def test_a_writer_that_sleeps_before_any_request_acknowledges_nothing_that_is_lost(
    later_too: bool | None,
) -> None:
    """Pause a writer before each request, open and write by another, resume: a third finds what both acknowledged."""

    def act(base: MemoryObjectStore, acked: ACKED) -> None:
        write(base.client(), b"second", acked)
        assert len(acked) == 4

    seen = list(paused_at_each(later_too, act))
    assert {request.method for request in seen} >= {
        "get",
        "get_range",
        "list_after",
        "put_if_absent",
        "put_if_match",
    }
    assert {request.key for request in seen} >= {"manifest", "claims", "log/00000000000000000005"}


def test_an_opener_that_sleeps_is_fenced_by_a_later_one_that_sleeps_too() -> None:
    """Pause an opener before each request, and a second before its fence; a third writes: all histories are kept."""

    def act(base: MemoryObjectStore, acked: ACKED) -> None:
        pause = Pause(12, later_too=True)
        other: ACKED = {}
        thread = threading.Thread(target=write, args=(base.client(pause), b"second", other))
        thread.start()
        pause.is_reached.wait(5)
        write(base.client(), b"third", acked)
        pause.resume.set()
        thread.join(20)
        acked.update(other)
        assert len(acked) >= 4

    assert len(list(paused_at_each(True, act))) > 12


FAULTS = {
    "lost answer": ObjectFault(after=ObjectUnknownError),
    "never done": ObjectFault(before=ObjectUnknownError),
    "throttled": ObjectFault(before=ObjectThrottledError, retry_after_s=0.01),
    "conflict of two puts": ObjectFault(before=ObjectConflictError),
    "the retry of a library finds its own put": ObjectFault(after=ObjectConflictError),
    "exists, though it did not": ObjectFault(after=ObjectExistsError),
}


# Slow: each request. By default every second one has the fault, and faults begin in turns at the first and the second.
@pytest.mark.parametrize("step", [2, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FAULTS)
def test_one_fault_of_any_request_changes_nothing(name: str, step: int) -> None:
    """Put each fault on each request of an opening and of appends: every record is acknowledged, once, and is there."""
    fault, number, begun = FAULTS[name], [*FAULTS].index(name) % step, MemoryObjectStore()
    conflicts = (ObjectConflictError, ObjectExistsError)
    before = started(begun)
    objects = objects_of(begun)
    while True:
        base, acked = store_with(objects), ACKED()

        def plan(request: ObjectRequest, number: int = number) -> ObjectFault | None:
            is_put = request.method.startswith("put")
            wanted = is_put or (fault.before not in conflicts and fault.after not in conflicts)
            return fault if request.number == number and wanted else None

        client = base.client(plan)
        write(client, b"first", acked)
        assert len(acked) == 4
        check_history(base, before, acked)
        number += step
        if number >= len(client.requests):
            break
    assert number > 15


class Dying:
    """The plan of a writer that ends at its put of this number: that put is late, and nothing after it is done."""

    def __init__(self, number: int) -> None:
        self.puts_left = number

    def __call__(self, request: ObjectRequest) -> ObjectFault | None:
        if request.method.startswith("put"):
            self.puts_left -= 1
            if not self.puts_left:
                return ObjectFault(late=True)
        return ObjectFault(before=ObjectStoreError) if self.puts_left <= 0 else None


@pytest.mark.parametrize("is_before", [True, False], ids=["before the fence", "after the records"])
def test_a_put_that_lands_late_stays_out_of_another_history(is_before: bool) -> None:
    """Let the last put of a dying writer land before or after a second one has opened and written: all is kept."""
    number = 1
    while True:
        base, first, second = MemoryObjectStore(), ACKED(), ACKED()
        before, plan = started(base), Dying(number)
        client = base.client(plan)
        write(client, b"first", first)
        if is_before:
            client.land()
        write(base.client(), b"second", second)
        if not is_before:
            client.land()
        assert len(second) == 4
        check_history(base, before, first, second)
        if plan.puts_left > 0:
            break
        number += 1
    assert number > 6
