"""The states of one moment: their number, their files, and the choice among too many."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walkit.crashlab import PROFILES, Profile
from walkit.crashlab.crash_states import CrashStates
from walkit.errors import OptionsError
from walkit.models import CrashingStorage, CrashOutcome

Step = Callable[[CrashingStorage], object]


def storage_after(*steps: Step) -> CrashingStorage:
    """Return a storage with one durable file, after these steps."""
    storage = CrashingStorage()
    storage.create()
    file = storage.open("old", "create")
    file.write(0, [b"o" * 1024])
    file.sync()
    storage.sync_directory()
    for step in steps:
        step(storage)
    return storage


def written(name: str, offset: int, data: bytes) -> Step:
    """Write to a file, without a sync."""
    return lambda storage: storage.open(name, "write").write(offset, [data])


def made(name: str) -> Step:
    """Make a file, without a sync of the folder."""
    return lambda storage: storage.open(name, "create")


def renamed(source: str, target: str) -> Step:
    """Rename a file."""
    return lambda storage: storage.replace(source, target)


def contents(storage: CrashingStorage) -> dict[str, bytes]:
    """Return the bytes of each file."""
    return {name: storage.open(name, "read").read(0, 1 << 20) for name in storage.names()}


def images(storage: CrashingStorage, profile: Profile) -> list[dict[str, bytes]]:
    """Return the files of each state."""
    states = CrashStates(storage, profile)
    return [contents(states.image(number)) for number in range(states.count)]


COUNTS: dict[str, tuple[tuple[Step, ...], dict[str, int]]] = {
    "nothing pending": ((), {"contract": 1, "ext4-ordered": 1, "issued": 1}),
    "two sectors overwritten": (
        (written("old", 0, b"n" * 1024),),
        {"contract": 4, "ext4-ordered": 4, "pages": 2, "issued": 3},
    ),
    "a write that grows by two sectors": (
        (written("old", 1024, b"n" * 1024),),
        {"contract": 5, "ext4-ordered": 4, "ext4-writeback": 5, "issued": 3},
    ),
    "a write of the same bytes": ((written("old", 0, b"o" * 1024),), {"contract": 1, "ext4-ordered": 1}),
    "a file made and renamed": (
        (made("new"), renamed("new", "named")),
        {"contract": 4, "ext4-ordered": 3, "issued": 3},
    ),
    "one sector in each of two writes": (
        (written("old", 0, b"n" * 512), written("old", 512, b"n" * 512)),
        {"contract": 4, "issued": 3},
    ),
}


@pytest.mark.parametrize("name", COUNTS)
def test_states_are_counted(name: str) -> None:
    """Leave changes without a sync: each profile has as many states as it lets each change end in."""
    steps, counts = COUNTS[name]
    for profile, count in counts.items():
        assert CrashStates(storage_after(*steps), PROFILES[profile]).count == count, profile


def test_the_first_state_loses_everything_and_the_last_one_keeps_it() -> None:
    """Make images of both: one has the durable bytes alone, the other the readable ones."""
    storage = storage_after(written("old", 256, b"n" * 2048), made("new"), written("new", 0, b"x"))
    for profile in PROFILES.values():
        states = CrashStates(storage, profile)
        assert contents(states.image(0)) == {"old": b"o" * 1024}
        assert contents(states.image(states.count - 1)) == contents(storage)
        assert states.describe(states.count - 1) == ()


def test_what_a_profile_excludes_does_not_come_up() -> None:
    """Make every image of a rename after a write: order and sizes are as each profile says."""
    steps = (made("new"), written("new", 0, b"n" * 1024), renamed("new", "old"))
    in_order = images(storage_after(*steps), PROFILES["issued"])
    assert all(found["old"] == b"o" * 1024 or found["old"] == b"n" * 1024 for found in in_order)
    assert {"old": b""} in images(storage_after(*steps), PROFILES["ext4-ordered"])
    zeros = {"old": bytes(1024)}
    assert zeros in images(storage_after(*steps), PROFILES["ext4-writeback"])
    assert zeros not in images(storage_after(*steps), PROFILES["ext4-ordered"])
    grown = (written("old", 1024, b"n" * 1024),)
    half = {"old": b"o" * 1024 + bytes(512) + b"n" * 512}
    assert half in images(storage_after(*grown), PROFILES["ext4-ordered"])
    assert half not in images(storage_after(*grown), PROFILES["pages"])


@st.composite
def pending_storages(draw: st.DrawFn) -> CrashingStorage:
    """Draw a storage with a few changes that no sync covers, in files that may be new, renamed or removed."""
    storage = storage_after()
    for turn in range(draw(st.integers(0, 5))):
        names = storage.names()
        what = draw(st.sampled_from(("write", "make", "rename", "remove", "sync", "shorten")))
        if what == "make":
            storage.open(f"new {turn}", "create")
        elif names:
            name = draw(st.sampled_from(names))
            if what == "rename":
                storage.replace(name, f"named {turn}")
            elif what == "remove":
                storage.remove(name)
            elif what == "sync":
                storage.open(name, "write").sync()
            elif what == "shorten":
                storage.open(name, "write").shorten(draw(st.integers(0, 1500)))
            else:
                data = bytes([turn + 1]) * draw(st.integers(1, 1300))
                storage.open(name, "write").write(draw(st.integers(0, 1200)), [data])
    return storage


@given(pending_storages(), st.sampled_from(sorted(PROFILES)))
def test_a_number_stands_for_one_state(storage: CrashingStorage, name: str) -> None:
    """Draw a storage: numbers and digits turn into each other, and different numbers give different fates."""
    states = CrashStates(storage, PROFILES[name])
    numbers = range(states.count) if states.count < 500 else list(states.chosen(100, 1))
    fates = set()
    for number in numbers:
        assert states.number(states.digits(number)) == number
        fates.add(tuple(states.fates(number)))
    assert len(fates) == len(numbers)


@given(pending_storages())
def test_ordered_names_are_a_part_of_the_contract(storage: CrashingStorage) -> None:
    """Draw a storage: each state under a journal that keeps the order of names is one of the contract's, too."""
    contract, journal = PROFILES["contract"], PROFILES["ext4-writeback"]
    if CrashStates(storage, contract).count <= 2000:
        hardest = {tuple(sorted(found.items())) for found in images(storage, contract)}
        assert {tuple(sorted(found.items())) for found in images(storage, journal)} <= hardest


@given(pending_storages(), st.integers(1, 60), st.integers(0, 3))
def test_as_many_as_the_budget_are_chosen(storage: CrashingStorage, budget: int, seed: int) -> None:
    """Draw a storage and a budget: no number twice, all if they are few, alike each time."""
    states = CrashStates(storage, PROFILES["contract"])
    chosen = list(states.chosen(budget, seed))
    assert len(set(chosen)) == len(chosen) <= budget
    assert all(0 <= number < states.count for number in chosen)
    if states.count <= budget:
        assert sorted(chosen) == list(range(states.count))
    assert chosen == list(states.chosen(budget, seed))


def test_gentler_states_keep_more() -> None:
    """Ask for the gentler states of the one that loses everything: each keeps one change, and the last has none."""
    storage = storage_after(written("old", 0, b"n" * 512), written("old", 512, b"m" * 512))
    states = CrashStates(storage, PROFILES["contract"])
    gentler = [contents(states.image(number))["old"] for number in states.gentler(0)]
    assert gentler == [b"n" * 512 + b"o" * 512, b"o" * 512 + b"m" * 512]
    assert list(states.gentler(states.count - 1)) == []


def test_fates_match_the_pending_changes() -> None:
    """Give a wrong number of fates: a clear refusal. A cell has any of its earlier contents."""
    storage = storage_after(written("old", 0, b"n"))
    with pytest.raises(OptionsError, match="fates=2: one for each of the 1 changes"):
        storage.image([CrashOutcome(), CrashOutcome()])
    cell = storage.cell("cell", 4, writable=True)
    assert cell is not None
    storage.sync_directory()
    for value in (b"1", b"2"):
        cell.write(0, value)
    change = storage.pending()[-1]
    assert (change.kind, change.size) == ("cell", 3)
    left = [
        storage.image([CrashOutcome(), CrashOutcome(content=n)]).open("cell", "read").read(0, 4)
        for n in range(3)
    ]
    assert left == [bytes(4), b"1\0\0\0", b"2\0\0\0"]
