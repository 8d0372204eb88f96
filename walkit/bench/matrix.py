"""`walkit bench write`: a matrix of ways in, callers, record sizes and options, beside the raw device in the same run.

Every measurement gets a new log and the same records: a value, no key; its first segment is there before
anything counts. The raw loop runs just before and just after each, so that drift shows. With `runs` above 1 the whole
matrix is gone through so many times, one after the other, and the row of the median is shown: what drifts, drifts for
all.
"""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import product
from secrets import token_hex
from typing import Any, Literal, NamedTuple

from walkit._internal.arguments import check_bool, check_number, refuse
from walkit.bench.modelled import bench_modelled
from walkit.bench.peers import PEERS, LevelDb, measure_peer, require_peers
from walkit.bench.runner import Case, check_counts, in_turns, stepping, work_folder
from walkit.bench.write import (
    Way,
    _arrow,
    _many,
    _on_a_thread,
    _outstanding,
    _raw,
    _submit,
    _tasks,
    _threads,
    beside_puts,
    raw_frames,
)
from walkit.bench.write_report import BenchReport, BenchRow
from walkit.config import LogOptions
from walkit.log.validate import require_fits
from walkit.log.wal import WriteAheadLog
from walkit.measure import MachineFacts
from walkit.objects.entrance import open_log
from walkit.objects.open import IN_FLIGHT, object_options
from walkit.storage.address import is_object_url
from walkit.storage.mounts import require_folder
from walkit.workload.policies import policy_named

Measure = Callable[[str], list[BenchRow]]
"""Measures in an empty folder or prefix: the row, and a row of raw frames or PUTs if it is compared with them."""

SINGLE_WAYS = ("append", "append_async", "submit")
"""Ways in of one record a call, as those of peers are."""

Orders = Sequence[Literal["append", "completion"] | None]


class Chosen(NamedTuple):
    """How the logs of some rows are written: the name of the policy, and all other options."""

    policy: str
    options: LogOptions

    def fresh(self) -> LogOptions:
        """Return the options for one log: a policy belongs to one log alone."""
        return replace(self.options, policy=policy_named(self.policy))


def bench_write(
    *,
    writers: list[int],
    tasks: list[int],
    record_bytes: int | Sequence[int] = 100,
    in_flight: Sequence[int] | None = None,
    ack_order: Orders = (None,),
    seconds: float = 2.0,
    path: str | None = None,
    model: str | None = None,
    durability: Literal["sync", "interval", "none"] = "sync",
    direct_io: bool = False,
    policy: Sequence[str] | None = None,
    outstanding: Sequence[int] = (),
    peers: bool = False,
    runs: int | None = None,
    progress: bool = True,
) -> BenchReport:
    """Measure every combination, each on a fresh log, with the raw loop before, between and after.

    `writers` and `tasks` are numbers of callers of `append` and `append_async`; `submit`, `append_many` and
    `append_arrow` have one. `path` is a folder on the device to measure (default: the folder for temporary files);
    nothing is left in it. Each measurement takes `seconds`, and some before them that do not count. `peers` adds
    SQLite, LevelDB, RocksDB and LMDB (extra `peers`), driven by as many threads, and to each row its ratios to
    them. `runs`: medians of so many (default: 5 with peers, else 1). Compare rows of one report with each other,
    not with another report: machines drift. `direct_io` writes the logs past the page cache. `policy`: names, as
    `policy_named` knows them.

    With `outstanding`, numbers of records that are on their way at the same time, one thread with as many tickets is
    measured instead of `submit` and the bulk calls, and every way is followed by raw parallel writes of frames as large
    as its own, as many at a time as frames are in flight. With `model`, the name of a modelled device, `seconds` are
    virtual ones and there are writers alone.

    `path` may be the URL of an object store, with credentials from the environment. Then every way is followed by plain
    PUTs of objects as large as its own, without raw loops. Each measurement has a prefix of its own below the URL and
    removes its objects. The defaults are 16 frames in flight and "adaptive", in 5 runs; else 1 and "take-all".

    Raises OptionsError and the errors of the log.
    """
    check_bool(progress, "progress")
    sizes = [record_bytes] if isinstance(record_bytes, int) else list(record_bytes)
    on_objects = is_object_url(path)
    runs = (5 if peers or on_objects else 1) if runs is None else runs
    _check(writers, tasks, sizes, seconds, path, runs, outstanding)
    in_flight = in_flight or [IN_FLIGHT if on_objects else 1]
    policy = policy or ["adaptive" if on_objects else "take-all"]
    options = combinations(durability, direct_io, in_flight, ack_order, policy)
    if on_objects:
        if peers:
            refuse("peers", peers, "they write files, and this is the URL of an object store")
        for chosen in options:
            object_options(chosen.fresh())
    for size in sizes:
        require_fits("record_bytes", size, options[0].options)
    if model is not None:
        if peers or tasks or outstanding or direct_io or path is not None:
            refuse(
                "model", model, "in virtual time there are writers alone, no tasks, direct_io, peers or path"
            )
        return bench_modelled(
            model,
            writers=writers,
            sizes=sizes,
            options=[(c.policy, c.fresh()) for c in options],
            seconds=seconds,
        )
    if peers:
        require_peers()
    measures = {size: _measures(options, writers, tasks, outstanding, size, seconds, peers) for size in sizes}
    return _measured(measures, options[0].options, seconds, path, runs, progress)


def combinations(
    durability: Literal["sync", "interval", "none"],
    direct_io: bool,
    in_flight: Sequence[int],
    ack_order: Orders,
    policy: Sequence[str],
) -> list[Chosen]:
    """Return every combination; OptionsError if one cannot be."""
    found = [
        Chosen(
            name,
            LogOptions(durability=durability, in_flight=depth, ack_order=order, direct_io=direct_io),
        )
        for depth, order, name in product(in_flight, ack_order, policy)
    ]
    for chosen in found:
        chosen.fresh()
    return found


def _measured(
    measures: dict[int, list[Measure]],
    options: LogOptions,
    seconds: float,
    path: str | None,
    runs: int,
    progress: bool,
) -> BenchReport:
    """Measure every way of every record size in turns, each between two raw loops."""
    url = path if is_object_url(path) else None
    with work_folder(path if url is None else None) as folder:
        machine = MachineFacts.here(folder if url is None else None)
        blocks = {size: _frame_bytes(folder, options, size) for size in measures}
        cases = [
            case
            for size, found in measures.items()
            for case in _cases(size, found, blocks[size], url, seconds)
        ]
        with stepping("write", runs * len(cases), progress) as step:
            turns = in_turns(cases, runs, folder, step)
    passes = [
        _beside_peers(_beside_raw([row for rows in turn for row in rows]))
        for turn in zip(*turns, strict=True)
    ]
    return BenchReport(
        record_bytes=tuple(measures),
        durability=options.durability,
        location=url or os.path.dirname(folder),
        raw_block_bytes=next(iter(blocks.values())),
        machine=machine,
        rows=tuple(median_row(same) for same in zip(*passes, strict=True)),
        runs=runs,
    )


def _cases(
    size: int, measures: Sequence[Measure], block_bytes: int, url: str | None, seconds: float
) -> list[Case[list[BenchRow]]]:
    """Return the cases of a record size: raw loops before, between and after, except on object storage."""

    def sized(measure: Measure) -> Case[list[BenchRow]]:
        def rows(folder: str) -> list[BenchRow]:
            place = folder if url is None else f"{url.rstrip('/')}/walkit-bench-{token_hex(8)}"
            return [replace(row, record_bytes=size) for row in measure(place)]

        return Case(f"values of {size:,} bytes", rows)

    raw = sized(lambda folder: [_raw(folder, block_bytes, seconds)])
    if url is not None:
        return [sized(measure) for measure in measures]
    return [raw, *(case for measure in measures for case in (sized(measure), raw))]


def _beside_raw(rows: list[BenchRow]) -> list[BenchRow]:
    """Give each row the mean rate of the raw loops just before and just after it."""
    raw = [number for number, row in enumerate(rows) if row.way == "raw"]

    def mean(at: int) -> float:
        before, after = max(n for n in raw if n < at), min(n for n in raw if n > at)
        return (rows[before].raw_per_s + rows[after].raw_per_s) / 2

    return [
        replace(row, raw_per_s=mean(number)) if raw and row.way != "raw" else row
        for number, row in enumerate(rows)
    ]


def median_row(rows: Sequence[BenchRow]) -> BenchRow:
    """Return the row of median throughput, of an even number the lower one, with the throughputs of all.

    Its ratios to raw frames and to peers are the medians of those that each run found within itself.
    """
    middle = sorted(rows, key=lambda row: row.records_per_s)[(len(rows) - 1) // 2]
    times = tuple(row.times_raw_frames for row in rows if row.times_raw_frames is not None)
    over = {
        name: statistics.median_low([row.times_peers[name] for row in rows if name in row.times_peers])
        for name in middle.times_peers
    }
    return replace(
        middle,
        all_per_s=tuple(row.records_per_s for row in rows),
        times_raw_frames=statistics.median_low(times) if times else None,
        all_times_raw_frames=times,
        times_peers=over,
    )


def _beside_peers(rows: Sequence[BenchRow]) -> list[BenchRow]:
    """Give each row of a log its ratios to the peers of the same pass: with as many callers, and its own promise.

    The one submitter, whose calls promise nothing yet, is beside the peer that does not sync.
    """

    def compares(row: BenchRow, peer: BenchRow) -> bool:
        promise = "none" if row.way == "submit" else row.durability
        same = (peer.callers, peer.durability, peer.record_bytes)
        alike = same == (row.callers, promise, row.record_bytes)
        return alike and row.way in SINGLE_WAYS and peer.way in PEERS and peer.records > 0

    return [
        replace(
            row,
            times_peers={
                peer.way: row.records_per_s / peer.records_per_s for peer in rows if compares(row, peer)
            },
        )
        for row in rows
    ]


def _measures(
    options: Sequence[Chosen],
    writers: Sequence[int],
    tasks: Sequence[int],
    outstanding: Sequence[int],
    record_bytes: int,
    seconds: float,
    peers: bool,
) -> list[Measure]:
    value = os.urandom(record_bytes)

    def of(chosen: Chosen, way: Way) -> Measure:
        return lambda folder: _of_log(folder, chosen, value, way, seconds, bool(outstanding))

    def called(way: Callable[[WriteAheadLog, int, bytes, float], BenchRow], callers: int) -> Any:
        return lambda log: way(log, callers, value, seconds)

    def of_peer(name: str, make: Callable[[str], Any], callers: int) -> Measure:
        return lambda folder: [_of_peer(folder, name, make, callers, value, seconds)]

    def with_tickets(log: WriteAheadLog, count: int) -> BenchRow:
        return _on_a_thread("bench-tickets", lambda: _outstanding(log, count, value, seconds))

    found: list[Measure] = []
    for count in dict.fromkeys((*writers, *tasks)):
        found += [of(chosen, called(_threads, count)) for chosen in options if count in writers]
        found += [of(chosen, called(_tasks, count)) for chosen in options if count in tasks]
        if peers and count in writers:
            found += [of_peer(name, make, count) for name, make in PEERS.items()]
    if peers:
        found.append(of_peer("leveldb", lambda folder: LevelDb(folder, sync=False), 1))
    for chosen in options:
        if outstanding:
            found += [of(chosen, partial(with_tickets, count=count)) for count in outstanding]
            continue
        found += [
            of(chosen, lambda log: _on_a_thread("bench-submit", lambda: _submit(log, value, seconds))),
            of(chosen, lambda log: _many(log, value, seconds)),
            of(chosen, lambda log: _arrow(log, value, seconds)),
        ]
    return found


def _of_log(
    folder: str,
    chosen: Chosen,
    value: bytes,
    way: Way,
    seconds: float,
    framed: bool,
) -> list[BenchRow]:
    """Measure a way into a new log, and if `framed` or on object storage, plain writes of equal frames."""
    options = chosen.fresh()
    if is_object_url(folder):
        rows = beside_puts(folder, options, value, way, seconds)
    else:
        with open_log(os.path.join(folder, "log"), "x", options) as log:
            log.append(value)  # makes the first segment
            row = way(log)
            rows = [*raw_frames(log, row, seconds)] if framed else [row]
    rows[0] = replace(
        rows[0],
        durability=options.durability,
        in_flight=options.in_flight,
        ack_order=options.ack_order or "append",
        policy=chosen.policy,
    )
    return rows


def _of_peer(
    folder: str, name: str, make: Callable[[str], Any], callers: int, value: bytes, seconds: float
) -> BenchRow:
    with closing(make(folder)) as peer:
        return measure_peer(name, peer, callers, value, seconds)


def _frame_bytes(parent: str, options: LogOptions, record_bytes: int) -> int:
    """Return the bytes of a frame with one record."""
    path = os.path.join(parent, f"frame-{record_bytes}")
    with open_log(path, "x", options) as log:
        log.append(bytes(record_bytes))
        size = log.statistics().frame_bytes
    shutil.rmtree(path)
    return size


def _check(
    writers: list[int],
    tasks: list[int],
    sizes: Sequence[int],
    seconds: float,
    path: str | None,
    runs: int,
    outstanding: Sequence[int],
) -> None:
    check_counts(writers=writers, tasks=tasks, record_bytes=sizes, runs=[runs], outstanding=outstanding)
    if not sizes:
        refuse("record_bytes", sizes, "at least one size")
    check_number(seconds, "seconds", above=True)
    require_folder(None if is_object_url(path) else path)
