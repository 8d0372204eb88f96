"""Histories of records for tests, made into logs and read aloud: what a state and a diff have to be."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import zip_longest

import walkit
from walkit.models import CrashingStorage

Row = tuple[int, bytes | None, bytes | None]
"""kind, key, value."""
State = dict[bytes, tuple[bytes | None, int]]
"""Value and LSN of each live key."""
Newest = dict[bytes, tuple[bytes | None, int, bool]]
"""Value and LSN of the newest record of each key, and whether it is live."""
DiffRow = tuple[bytes, str, bytes | None, bytes | None, int | None, int | None]


def random_rows(seed: int, count: int, keys: int = 12) -> list[Row]:
    """Puts, deletes, events, puts without a value and with an empty one, over few keys, the empty key among them."""
    rng = random.Random(seed)
    rows: list[Row] = []
    for n in range(count):
        key = b"" if (number := rng.randrange(keys)) == 0 else b"key-%d" % number
        what = rng.random()
        if what < 0.25:
            rows.append((2, key, None))
        elif what < 0.35:
            rows.append((1, None, b"event"))
        else:
            # Few values, so that two histories agree on some keys.
            rows.append((1, key, rng.choice([None, b"", b"v", b"w" * 50, b"%d" % (n % 3)])))
    return rows


def write(place: str | CrashingStorage, rows: list[Row], epochs: int = 1) -> None:
    """Make a log of these records: one by one, many at a time and in transactions, over several openings."""
    storage = place if isinstance(place, CrashingStorage) else None
    path = None if isinstance(place, CrashingStorage) else place
    options = walkit.LogOptions(durability="none", segment_bytes=64 * 1024, frame_bytes_max=16 * 1024)
    if path is not None and path.startswith("objects:"):
        options = walkit.LogOptions()
    share = -(-len(rows) // epochs) if rows else 0
    for epoch in range(epochs):
        with walkit.open(path, options=options, storage=storage) as log:
            part = rows[epoch * share : (epoch + 1) * share]
            while part:
                size = (len(part) * 7 + epoch) % 5 + 1
                now, part = part[:size], part[size:]
                if size == 1 and now[0][0] == 1:
                    log.append(now[0][2], now[0][1])
                    continue
                with log.transaction() as tx:
                    for kind, key, value in now:
                        if kind == 2:
                            tx.delete(key)
                        else:
                            tx.append(value, key)


def woven(histories: Sequence[Sequence[Row]]) -> list[Row]:
    """Return one history of all: record by record in turn, the keys of each apart from those of the others."""
    return [
        (kind, key if key is None or not number else b"%d %b" % (number, key), value)
        for turn in zip_longest(*histories)
        for number, row in enumerate(turn)
        if row is not None
        for kind, key, value in (row,)
    ]


def state_of(rows: list[Row], at_lsn: int | None = None) -> State:
    """The rule read aloud: in LSN order, a record with a key sets it, a delete removes it."""
    state: State = {}
    for lsn, (kind, key, value) in enumerate(rows[:at_lsn], 1):
        if key is None:
            continue
        if kind == 2:
            state.pop(key, None)
        else:
            state[key] = (value, lsn)
    return state


def newest_of(rows: list[Row], at_lsn: int | None = None) -> Newest:
    """The newest record of each key, deletes as well: its value, its LSN, and whether the key is live."""
    newest: Newest = {}
    for lsn, (kind, key, value) in enumerate(rows[:at_lsn], 1):
        if key is not None:
            newest[key] = (None, lsn, False) if kind == 2 else (value, lsn, True)
    return newest


def diff_of(left: Newest, right: Newest, *, unchanged: bool = False) -> list[DiffRow]:
    """The diff of two states by a loop over their keys; a key that is not live has the LSN of its deletion."""
    rows: list[DiffRow] = []
    nothing = (None, None, False)
    for key in sorted({*left, *right}):
        (left_value, left_lsn, left_live), (right_value, right_lsn, right_live) = (
            left.get(key, nothing),
            right.get(key, nothing),
        )
        if not left_live and not right_live:
            continue
        change = "I" if not left_live else "D" if not right_live else "CN"[left_value == right_value]
        if change != "N" or unchanged:
            rows.append((key, change, left_value, right_value, left_lsn, right_lsn))
    return rows
