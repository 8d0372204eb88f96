"""The expected state, computed by pandas from the CSV and the acknowledgements alone.

The oracle shares with the maker of the stream only the flights that it is given. It builds the operations a second
way: as a long table of pandas frames, with wall-clock times turned into UTC by the dates of daylight saving time (the
stream uses the file's UTC hour), arrivals from the clock times (the stream uses the delays), values through
`DataFrame.to_json`, and order through a sort of the whole table. That both ways agree, operation for
operation, is a test; the state is then `drop_duplicates(keep="last")`. It never runs walkit's log, reader or
Store.

After a kill the outcome of unacknowledged operations is open. `check_recovered` allows for each
key the states from its last acknowledged operation to its last submitted one, and nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from walkit._internal.arguments import refuse
from walkit._internal.html import table, tag
from walkit._internal.text import counted
from walkit.record import Kind
from walkit.workload.operations import Int64s, Mask

if TYPE_CHECKING:
    import pandas as pd

SAMPLES_MAX: Final = 10
"""How many violations a report shows in full."""

_PLANNED: Final = ["dest", "distance", "sched_arr_time", "sched_dep_time", "status", "tailnum"]
_LEFT: Final = ["dep_delay", "dep_time", *_PLANNED]
_LANDED: Final = ["air_time", "arr_delay", "arr_time", *_LEFT]
_LEG: Final = ["carrier", "date", "dep_time", "dest", "flight", "origin"]

Changes: TypeAlias = dict[bytes, tuple[str, bytes | None, bytes | None]]
"""A diff: for each key that differs (change, value on the left, value on the right)."""

Fault: TypeAlias = Literal["missing", "invented", "different", "torn"]


@dataclass(frozen=True, slots=True)
class Violation:
    """One key whose state is wrong. `expected` is the right value; None as `found` is an absent key."""

    fault: Fault
    key: bytes
    expected: str
    found: bytes | None


@dataclass(frozen=True, kw_only=True)
class OracleReport:
    """The verdict of the oracle on one state. Counts are of keys; `torn` counts groups."""

    subject: str
    """Which state was checked, in words."""
    compared: int
    """Keys that were compared. A report that compared nothing is not ok."""
    missing: int = 0
    """Keys that must be there and are not."""
    invented: int = 0
    """Keys that are there and may not be: never written, or deleted."""
    different: int = 0
    """Keys that may be there, with another value."""
    torn: int = 0
    """Groups of which some operations took effect and others surely did not."""
    samples: tuple[Violation, ...] = ()
    """The first violations, at most `SAMPLES_MAX`."""

    @property
    def violations(self) -> int:
        """All that is wrong."""
        return self.missing + self.invented + self.different + self.torn

    @property
    def ok(self) -> bool:
        """True when something was compared and nothing is wrong."""
        return self.compared > 0 and self.violations == 0

    def __str__(self) -> str:
        faults = {name: getattr(self, name) for name in ("missing", "invented", "different", "torn")}
        counts = ", ".join(f"{name} {count:,}" for name, count in faults.items())
        verdict = "ok" if self.ok else "WRONG" if self.violations else "NOTHING COMPARED"
        return f"{self.subject}: {verdict}, {counted(self.compared, 'key')} compared ({counts})"

    def _repr_html_(self) -> str:
        rows = [
            (v.fault, tag("code", _text(v.key)), tag("code", v.expected), tag("code", _text(v.found)))
            for v in self.samples
        ]
        shown = [table(rows, ("fault", "key", "expected", "found"))] if rows else []
        mark = "\N{CHECK MARK}" if self.ok else "\N{BALLOT X}"
        return tag("div", tag("p", tag("strong", mark), f" {self}"), *shown)


def operation_table(flights: pd.DataFrame) -> pd.DataFrame:
    """Return every operation of the flights (as from `load_flights`), a row each, in the order of the stream.

    Columns: operation (int64, the row's number), group (int64), time_us (int64, UTC), kind (int8, of
    `walkit.record.Kind`), key (bytes), value (bytes, None for a delete).
    """
    import pandas as pd

    f = flights.reset_index(drop=True)
    f["date"] = pd.to_datetime(f[["year", "month", "day"]]).dt.strftime("%Y-%m-%d").astype(object)
    f["key"] = "flight/" + f["date"] + "/" + f["carrier"] + "/" + f["flight"].astype(str) + "/" + f["origin"]
    f = f.assign(**_moments(f))
    left = f[f["dep_time"].notna()].astype({"dep_time": "int64", "dep_delay": "int64"})
    legs = left.assign(key="tail/" + left["tailnum"])
    landed = left[left["arr_delay"].notna()].astype(
        dict.fromkeys(("air_time", "arr_delay", "arr_time"), "int64")
    )
    table = pd.concat(
        [
            _rows(f, f["departs"] - pd.Timedelta(days=1), 0, _json(f.assign(status="scheduled"), _PLANNED)),
            _rows(left, left["left"], 1, _json(left.assign(status="departed"), _LEFT)),
            _rows(legs, left["left"], 2, _json(legs, _LEG)),
            _rows(landed, landed["landed"], 3, _json(landed.assign(status="arrived"), _LANDED)),
            _rows(gone := f[f["dep_time"].isna()], gone["departs"], 4, None),
        ]
    )
    table = table.sort_values(["time", "row", "step"], ignore_index=True)
    # The second operation of a group is the leg of an aircraft, just after the departure it belongs to.
    group = (table["step"] != 2).cumsum() - 1
    time_us = (table["time"] - pd.Timestamp(0)) // pd.Timedelta(microseconds=1)
    kind = pd.Series(np.where(table["step"] == 4, Kind.DELETE, Kind.PUT).astype(np.int8))
    columns = {"group": group, "time_us": time_us, "kind": kind, "key": table["key"], "value": table["value"]}
    return pd.DataFrame({"operation": np.arange(len(table)), **columns})


def _moments(f: pd.DataFrame) -> dict[str, pd.Series[Any]]:
    """Return when each flight is to leave, leaves and lands, in UTC without a zone (NaT: never)."""
    import pandas as pd

    day = pd.to_datetime(f["date"])
    daylight = (day >= pd.Timestamp("2013-03-10")) & (day < pd.Timestamp("2013-11-03"))
    here = daylight.astype("int64") - 5
    there = f["dest_offset_hours"] + (daylight & f["dest_daylight"]).astype("int64")
    departs = day + _clock(f["sched_dep_time"]) - _minutes(here * 60)
    left = departs + _minutes(f["dep_delay"])
    gain = _minutes((here - there) * 60)
    flown: Any = _clock(f["arr_time"].where(f["arr_delay"].notna())) - _clock(f["dep_time"]) + gain
    return {"departs": departs, "left": left, "landed": left + flown % pd.Timedelta(days=1)}


def _clock(hhmm: pd.Series[Any]) -> pd.Series[Any]:
    """Return a clock reading as a time since midnight; 2400 is a whole day."""
    return _minutes(hhmm // 100 * 60 + hhmm % 100)


def _minutes(numbers: pd.Series[Any]) -> pd.Series[Any]:
    """Return whole minutes as times, NaN as NaT. From floats pandas 2 reads memory that it has not set, and warns."""
    import pandas as pd

    return pd.to_timedelta(numbers.astype("Int64"), unit="min")


def _json(f: pd.DataFrame, columns: list[str]) -> list[bytes]:
    return f[columns].to_json(orient="records", lines=True).encode().splitlines() if len(f) else []


def _rows(f: pd.DataFrame, time: pd.Series[Any], step: int, values: list[bytes] | None) -> pd.DataFrame:
    import pandas as pd

    keys = pd.Series([key.encode() for key in f["key"]], index=f.index, dtype=object)
    value = pd.Series([None] * len(f) if values is None else values, index=f.index, dtype=object)
    return pd.DataFrame({"time": time, "row": f.index, "step": step, "key": keys, "value": value})


def state_after(
    table: pd.DataFrame, acknowledged: npt.ArrayLike | None = None, order: npt.ArrayLike | None = None
) -> dict[bytes, bytes]:
    """Return the state after the acknowledged operations of `operation_table`: live keys and their values.

    `acknowledged` is a mask of shape (operations,) or an array of operation numbers; None means all. `order`
    gives operation numbers as they took effect (LSN order), each acknowledged one exactly once; None is event
    time, which is the same for every key as long as each key was routed to one writer. Raises OptionsError
    for what does not fit.
    """
    mask = _mask(acknowledged, len(table), "acknowledged")
    if order is None:
        numbers = np.flatnonzero(mask)
    else:
        given = np.asarray(order, dtype=np.int64)
        _mask(given, len(table), "order")
        numbers = given[mask[given]]
        if len(numbers) != np.count_nonzero(mask) or len(np.unique(numbers)) != len(numbers):
            refuse("order", len(numbers), "each acknowledged operation exactly once", np.count_nonzero(mask))
    last = table[["kind", "key", "value"]].iloc[numbers].drop_duplicates("key", keep="last")
    live = last[last["kind"] == Kind.PUT]
    return dict(zip(live["key"], live["value"], strict=True))


def expected_changes(left: Mapping[bytes, bytes], right: Mapping[bytes, bytes]) -> Changes:
    """Return the changes from `left` to `right`: for each key that differs (change, left value, right value).

    change is I for a key that is only in `right`, D for one that is only in `left`, C for another value.
    """
    found: Changes = {key: ("I", None, right[key]) for key in right.keys() - left.keys()}
    found |= {key: ("D", left[key], None) for key in left.keys() - right.keys()}
    common = left.keys() & right.keys()
    found |= {key: ("C", left[key], right[key]) for key in common if left[key] != right[key]}
    return found


def change_counts(changes: Changes) -> dict[str, int]:
    """Return how many keys were inserted (I), deleted (D) and changed (C); all three are there, even if 0."""
    counts = Counter(change for change, _, _ in changes.values())
    return {change: counts[change] for change in ("I", "D", "C")}


def compare_changes(expected: Changes, actual: Changes, *, subject: str = "diff") -> OracleReport:
    """Compare two diffs key by key; another change, or another value on one side, is a difference."""
    return compare_states(_as_texts(expected), _as_texts(actual), subject=subject)


def _as_texts(changes: Changes) -> dict[bytes, bytes]:
    return {key: repr(change).encode() for key, change in changes.items()}


def compare_states(
    expected: Mapping[bytes, bytes], actual: Mapping[bytes, bytes], *, subject: str = "state"
) -> OracleReport:
    """Compare two states key by key; every difference counts."""
    keys = expected.keys() | actual.keys()
    wrong = [(key, expected.get(key), actual.get(key)) for key in keys]
    faults: list[Violation] = [
        Violation(
            "missing" if found is None else "invented" if want is None else "different",
            key,
            _text(want),
            found,
        )
        for key, want, found in wrong
        if want != found
    ]
    return _report(subject, len(keys), faults)


def check_recovered(
    table: pd.DataFrame,
    acknowledged: npt.ArrayLike,
    submitted: npt.ArrayLike,
    recovered: Mapping[bytes, bytes],
    *,
    subject: str = "recovered state",
) -> OracleReport:
    """Check a state recovered after a crash: nothing acknowledged missing, nothing invented, no group torn.

    `acknowledged` and `submitted` are masks of shape (operations,) or arrays of operation numbers of the
    table; all that was acknowledged must have been submitted, else OptionsError. A key is right when its
    value is the state after its last acknowledged operation or after a later submitted one. A group is torn
    when one of its operations surely took effect and another surely did not. Keys with an acknowledged
    operation, and keys recovered, count as compared.
    """
    acked = _mask(acknowledged, len(table), "acknowledged")
    sent = _mask(submitted, len(table), "submitted")
    if (acked & ~sent).any():
        refuse("acknowledged", np.flatnonzero(acked & ~sent).tolist(), "operations that were submitted")
    codes, uniques = table["key"].factorize()
    keys: list[bytes] = [*uniques]
    found: list[bytes | None] = [recovered.get(key) for key in keys]
    last_acked = np.full(len(keys), -1, dtype=np.int64)
    np.maximum.at(last_acked, codes[acked], np.flatnonzero(acked))

    # A candidate is an operation whose outcome may be the recovered state of its key.
    candidates = np.flatnonzero(sent)
    candidates = candidates[candidates >= last_acked[codes[candidates]]]
    values: list[bytes | None] = table["value"].iloc[candidates].tolist()
    code_of = codes[candidates]
    fits = np.fromiter(
        (value == found[code] for value, code in zip(values, code_of.tolist(), strict=True)),
        np.bool_,
        len(values),
    )
    first, last = _first_and_last(candidates[fits], code_of[fits], len(keys))
    untouched = (last_acked < 0) & np.fromiter((value is None for value in found), np.bool_, len(keys))
    first[untouched] = -1

    wrong = np.flatnonzero((last < 0) & ~untouched)
    allowed: dict[int, list[bytes | None]] = {
        code: [None] if last_acked[code] < 0 else [] for code in wrong.tolist()
    }
    for i in np.flatnonzero(np.isin(code_of, wrong)).tolist():
        allowed[int(code_of[i])].append(values[i])
    faults = [_wrong(keys[code], allowed[code], found[code]) for code in wrong.tolist()]
    strangers = recovered.keys() - set(keys)
    faults += [Violation("invented", key, "absent", recovered[key]) for key in strangers]
    faults += _torn(table, sent, codes, first, last)
    compared = np.count_nonzero(
        (last_acked >= 0) | np.fromiter((v is not None for v in found), np.bool_, len(found))
    )
    return _report(subject, int(compared) + len(strangers), faults)


def _wrong(key: bytes, allowed: list[bytes | None], found: bytes | None) -> Violation:
    """Name the fault of a key that shows none of the values it is allowed (None: absent)."""
    lives = any(value is not None for value in allowed)
    fault: Fault = "missing" if found is None else "different" if lives else "invented"
    texts = list(dict.fromkeys(map(_text, allowed)))
    return Violation(fault, key, " or ".join(texts[:3]) + (" or ..." if len(texts) > 3 else ""), found)


def _first_and_last(numbers: Int64s, codes: Int64s, keys: int) -> tuple[Int64s, Int64s]:
    """Return for each key the first and the last of its numbers; far above all and -1 if it has none."""
    first = np.full(keys, np.iinfo(np.int64).max, dtype=np.int64)
    last = np.full(keys, -1, dtype=np.int64)
    np.minimum.at(first, codes, numbers)
    np.maximum.at(last, codes, numbers)
    return first, last


def _torn(table: pd.DataFrame, sent: Mask, codes: Int64s, first: Int64s, last: Int64s) -> list[Violation]:
    """Return a violation for each submitted group of which a part took effect.

    `first` and `last` bound the operation that the state of each key shows; a key whose state is wrong proves
    nothing.
    """
    groups = table["group"].to_numpy()
    numbers = np.flatnonzero(sent)
    of, code = groups[numbers], codes[numbers]
    known = first[code] <= last[code]
    done = np.zeros(int(groups.max(initial=-1)) + 1, dtype=np.bool_)
    undone = done.copy()
    done[of[known & (first[code] >= numbers)]] = True
    undone[of[known & (last[code] < numbers)]] = True
    torn = np.flatnonzero(done & undone)
    heads = np.searchsorted(groups, torn).tolist()
    keys = table["key"]
    text = "all operations of its group or none"
    return [Violation("torn", keys.iloc[head], text, None) for head in heads]


def _mask(which: npt.ArrayLike | None, operations: int, name: str) -> Mask:
    """Return a mask over operation numbers from a mask, an array of numbers or None for all."""
    if which is None:
        return np.ones(operations, dtype=np.bool_)
    given = np.asarray(which)
    if given.dtype == np.bool_:
        if given.shape != (operations,):
            refuse(name, given.shape, f"a mask of {operations} operations")
        return given
    if given.size and (given.dtype.kind not in "iu" or given.min() < 0 or given.max() >= operations):
        refuse(name, given, f"whole numbers from 0 to {operations - 1}")
    mask = np.zeros(operations, dtype=np.bool_)
    mask[given.astype(np.int64)] = True
    return mask


def _report(subject: str, compared: int, faults: list[Violation]) -> OracleReport:
    count = Counter(fault.fault for fault in faults)
    return OracleReport(
        subject=subject,
        compared=compared,
        missing=count["missing"],
        invented=count["invented"],
        different=count["different"],
        torn=count["torn"],
        samples=tuple(sorted(faults, key=lambda fault: fault.key)[:SAMPLES_MAX]),
    )


def _text(value: bytes | None) -> str:
    return "absent" if value is None else value.decode(errors="backslashreplace")
