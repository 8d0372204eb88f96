"""Processor time that Spark's Python side needs before the first row, beside that of reading: run by hand.

Three numbers for each size of a log, in its count of segments, as processor time of this process::

    python tests/benchmarks/bench_tasks.py --segments 100 1000 100000 --runs 3 --share 0.1 --out tasks.json

`planning` is a load and its partitions, pickled; `tasks` unpickles the reader and a partition for each task and proves
each of its segments by the header; `reading` is all rows of 1,000 segments, and by their bytes that of the others. The
manifest is made up, and so are its segments: files of a right header and the wanted size, with nothing in them. Spark's
own work for a task, in Java, is in none of them.

Exit 1 if planning and tasks of the longest log take a larger share of its reading than `--share`.
"""

from __future__ import annotations

import argparse
import json
import pickle
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import walkit
from walkit.bench.runner import Case, in_turns, work_folder
from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.format.manifest import LogEnd, Manifest
from walkit.format.segment import SegmentHeader
from walkit.read.view import LogView, Span
from walkit.segments.manifest_store import load_manifest, write_manifest
from walkit.spark.columns import RECORD_STRUCT
from walkit.spark.source import plan_load
from walkit.storage.address import storage_at

MIB = 1 << 20
T = TypeVar("T")
READ_SEGMENTS = 1_000
RECORD_BYTES = 210
READ_OPTIONS = walkit.LogOptions(durability="none", segment_bytes=MIB, frame_bytes_max=MIB // 4)


def real_log(path: Path) -> int:
    """Make a log of 1,000 segments of 1 MiB; return the bytes of their frames."""
    with walkit.open(path, options=READ_OPTIONS) as log:
        for start in count(step=1000):
            log.append_many(
                [b"%0180d" % n for n in range(start, start + 1000)], keys=[b"key-%08d" % start] * 1000
            )
            if start % 100_000 == 0 and len(list(path.glob("*.segment"))) > READ_SEGMENTS:
                break
    return sum(s.end_position - s.start_position for s in load_manifest(storage_at(path)).sealed)


def made_up(path: Path, like: Path, segments: int, segment_bytes: int) -> None:
    """Make a log of so many sealed segments, after the first of another: headers, sizes, and no frames."""
    path.mkdir()
    manifest = load_manifest(storage_at(like))
    first = manifest.sealed[0]
    header = SegmentHeader.decode((like / first.name).read_bytes()[:SEGMENT_HEADER_BYTES], first.name)
    assert header is not None
    records, made, end = segment_bytes // RECORD_BYTES, [], LogEnd(position=first.start_position)
    for number in range(1, segments + 1):
        own = replace(
            header,
            number=number,
            start_position=end.position,
            previous_end=end.position,
            first_lsn=end.last_lsn + 1,
        )
        begun, end = end, LogEnd(last_lsn=end.last_lsn + records, position=end.position + segment_bytes)
        made.append(
            first._replace(
                number=number,
                start_position=begun.position,
                end_position=end.position,
                first_lsn=begun.last_lsn + 1,
                last_lsn=end.last_lsn,
                end_chain=first.start_chain,
                records=records,
                frames=segment_bytes // READ_OPTIONS.frame_bytes_max,
            )
        )
        with (path / own.name).open("wb") as file:
            file.write(own.encode())
            file.truncate(SEGMENT_HEADER_BYTES + segment_bytes)
    changes: dict[str, Any] = {"segments": tuple(made), "end": end, "next_segment": segments + 1}
    write_manifest(storage_at(path), manifest.next(**changes))


def cpu(work: Callable[..., T], *given: object) -> tuple[float, T]:
    """Return the processor seconds of a call, and its result."""
    began = time.process_time()
    found = work(*given)
    return time.process_time() - began, found


def planned(path: Path) -> tuple[bytes, list[bytes]]:
    """Return what Spark sends for a load: the reader, and each partition."""
    reader = plan_load({"path": str(path)}).reader(RECORD_STRUCT)
    return pickle.dumps(reader), [pickle.dumps(partition) for partition in reader.partitions()]


def begin_tasks(path: Path, reader: bytes, partitions: list[bytes]) -> None:
    """Do what each task does before its first row, and at each further segment before the segment's first."""
    storage = storage_at(path)
    for partition in partitions:
        pickle.loads(reader)
        manifest: Manifest = pickle.loads(partition).value.planned.manifest
        view = LogView(storage, manifest, ())
        for record in manifest.segments:
            view.opened(Span(record, record.end_position, record.last_lsn))[0].close()


def read_rows(path: Path) -> None:
    """Read all rows, in this process, as tasks do."""
    reader, partitions = planned(path)
    task = pickle.loads(reader)
    for partition in partitions:
        for _ in task.read(pickle.loads(partition)):
            pass


def main() -> int:
    """Make the logs, measure in rounds, print the medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--segments", type=int, nargs="+", default=[100, 1_000, 100_000])
    parser.add_argument(
        "--segment-mib", type=int, default=64, help="size of a segment; 64 is that of LogOptions"
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--share", type=float, help="fail above this share of the reading")
    parser.add_argument("--out", type=Path, help="file for the seconds of each run, as JSON")
    arguments = parser.parse_args()

    def measure(path: Path, _: str) -> tuple[float, float, int]:
        planning, (reader, partitions) = cpu(planned, path)
        return planning, cpu(begin_tasks, path, reader, partitions)[0], len(partitions)

    sizes = sorted(arguments.segments)
    with work_folder(None) as folder:
        real = Path(folder) / "real"
        read_bytes = real_log(real)
        for segments in sizes:
            made_up(Path(folder) / f"{segments}", real, segments, arguments.segment_mib * MIB)
        cases = [Case(f"{segments:,}", partial(measure, Path(folder) / f"{segments}")) for segments in sizes]
        (reading,) = in_turns([Case("reading", lambda _: cpu(read_rows, real)[0])], arguments.runs, folder)
        measured = in_turns(cases, arguments.runs, folder)
    found: dict[str, dict[int, list[float]]] = {"planning": {}, "tasks": {}, "reading": {}}
    for segments, runs in zip(sizes, measured, strict=True):
        scale = segments * arguments.segment_mib * MIB / read_bytes
        found["planning"][segments] = [planning for planning, _, _ in runs]
        found["tasks"][segments] = [tasks for _, tasks, _ in runs]
        found["reading"][segments] = [seconds * scale for seconds in reading]
        words = (
            f"{name} {median(own[segments]):,.3f} s ({min(own[segments]):,.3f} to {max(own[segments]):,.3f})"
            for name, own in found.items()
        )
        print(f"{segments:,} segments, {runs[0][2]:,} tasks: {', '.join(words)}", flush=True)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(found))
    longest = {name: median(runs[max(runs)]) for name, runs in found.items()}
    share = (longest["planning"] + longest["tasks"]) / longest["reading"]
    print(f"planning and tasks are {share:.2%} of the reading; n = {arguments.runs}")
    return 0 if arguments.share is None or share <= arguments.share else 1


if __name__ == "__main__":
    raise SystemExit(main())
