"""How the time to open a log grows with its frames, over mixtures of frames: run by hand.

A mixture is made once with n frames and once with 10 n, without codec and with "zstd". Said are the processor times
(the median of three runs) of `walkit.open`, `Store.open` and `walkit.verify`, their growth from n to 10 n, which is
about 10 where the cost is linear and 100 where it is quadratic, and the share that the codec costs::

    python tests/benchmarks/bench_opening.py --frames 5_000 --growth 20 --codec 3
    python tests/benchmarks/bench_opening.py --mixtures sizes holes

Every mixture has frames of one record or a few: `sizes` small values among larger ones, so that some frames are
compressed; `kinds` events, deletes, transactions, bundles and timestamps; `killed` is `sizes` whose writer was killed;
`epochs` opens the log again every 250 frames; `holes` loses every 100th frame; `compacted` has lost most of its records
to compaction. In `alternating` every other frame is compressed, in `lone_packed` and `lone_plain` one of 500, in
`packed` all; `threshold` has values about the size from which compression is tried, and `dictionaries` bundles of a
dictionary column. "First open" is that after a kill, or with policy "salvage". Exit 1 if the growth of `Store.open`
or `verify`, or a codec's share of `Store.open`, is above what was given, or a record is missing.
"""

from __future__ import annotations

import argparse
import logging
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa

import walkit
from walkit.bench.runner import Case, in_turns, work_folder
from walkit.format.layout import FRAME_HEADER_BYTES
from walkit.read.reader import view_of
from walkit.storage.address import storage_at

EPOCH_FRAMES = 250
HOLE_FRAMES = 100
KEYS = 1000
ROUNDS = 3
GROWTH = 10
GATED = ("Store.open", "verify")
"""The ways that read the whole log; the others are too short to be compared."""
Times: TypeAlias = dict[str, float]


def options(codec: str | None, **more: object) -> walkit.LogOptions:
    """Return the options that logs are made with."""
    return walkit.LogOptions(durability="none", codec=codec, **more)  # type: ignore[arg-type]  # some fields


def value_of(number: int, rng: random.Random) -> bytes:
    """Return a value that is worth compressing, or is not, by chance."""
    return b"value %08d;" % number * rng.choice([1, 1, 4, 30, 300])


def append(log: walkit.WriteAheadLog, numbers: range) -> None:
    """Append one frame of one record for each number."""
    rng = random.Random(numbers.start)
    for number in numbers:
        log.append(value_of(number, rng), b"%d" % (number % KEYS))


def sizes(path: Path, frames: int, codec: str | None) -> None:
    """Make a log of small frames among larger ones."""
    with walkit.open(path, options=options(codec)) as log:
        append(log, range(frames))


def repeats(path: Path, frames: int, codec: str | None, count: Callable[[int], int]) -> None:
    """Make a log of single values, each a text that is repeated: from twice on it is compressed."""
    with walkit.open(path, options=options(codec)) as log:
        for number in range(frames):
            log.append((b"value %08d;" % number * 4) * count(number), b"%d" % (number % KEYS))


def threshold(path: Path, frames: int, codec: str | None) -> None:
    """Make a log of values from 60 to 123 bytes, half of each one byte repeated."""
    rng = random.Random(2)
    with walkit.open(path, options=options(codec)) as log:
        for number in range(frames):
            half = 30 + number % 32
            log.append(rng.randbytes(half) + bytes(half), b"%d" % (number % KEYS))


def dictionaries(path: Path, frames: int, codec: str | None) -> None:
    """Make a log of bundles of one dictionary column, among small values."""
    bundle = pa.record_batch({"word": pa.array([b"one", b"two"] * 20).dictionary_encode()})
    with walkit.open(path, options=options(codec)) as log:
        for number in range(frames):
            if number % 2:
                log.append(b"%d" % number, b"%d" % (number % KEYS))
            else:
                log.append_bundle(bundle, b"%d" % (number % KEYS))


def kinds(path: Path, frames: int, codec: str | None) -> None:
    """Make a log of every kind of record."""
    rng = random.Random(1)
    bundle = pa.record_batch({"number": list(range(40))})
    with walkit.open(path, options=options(codec)) as log:
        for number in range(frames):
            key, value = b"%d" % (number % KEYS), value_of(number, rng)
            match number % 7:
                case 0:
                    log.append(value)
                case 1:
                    log.delete(key)
                case 2:
                    log.append(value, key, timestamp=number)
                case 3:
                    log.append_many([value, b"", value[:9]], [key, b"", key * 3])
                case 4 if number % 5 == 0:
                    log.append_bundle(bundle)
                case 5:
                    with log.transaction() as transaction:
                        transaction.append(value, key)
                        transaction.delete(b"gone")
                case _:
                    log.append(value, key)


def killed(path: Path, frames: int, codec: str | None) -> None:
    """Make a log whose writer is killed: its frames are found, not named by the manifest."""
    script = (
        "import os, sys; sys.path[:0] = [sys.argv[1]]\n"
        "import bench_opening, walkit; from pathlib import Path\n"
        "log = walkit.open(Path(sys.argv[2]), options=bench_opening.options(sys.argv[4] or None))\n"
        "bench_opening.append(log, range(int(sys.argv[3]))); os.kill(os.getpid(), 9)\n"
    )
    folder = str(Path(__file__).resolve().parent)
    subprocess.run([sys.executable, "-c", script, folder, str(path), str(frames), codec or ""], check=False)


def epochs(path: Path, frames: int, codec: str | None) -> None:
    """Make a log that was opened again and again."""
    for first in range(0, frames, EPOCH_FRAMES):
        with walkit.open(path, options=options(codec)) as log:
            append(log, range(first, min(first + EPOCH_FRAMES, frames)))


def holes(path: Path, frames: int, codec: str | None) -> None:
    """Make a log with damage here and there: the first opening is to salvage it."""
    sizes(path, frames, codec)
    view, _ = view_of(storage_at(path))
    for span in view.spans:
        file, segment = view.opened(span)
        file.close()
        found = list(view.span_frames(span, 1, None, body=False))
        with (path / span.record.name).open("r+b") as damaged:
            for header, _ in filter(None, found[HOLE_FRAMES // 2 :: HOLE_FRAMES]):
                damaged.seek(segment.offset_of(header.position) + FRAME_HEADER_BYTES)
                damaged.write(b"\xff\xff\xff\xff")


def compacted(path: Path, frames: int, codec: str | None) -> None:
    """Make a log of which compaction has left little."""
    with walkit.Store.open(path, options=options(codec, segment_bytes=64 << 10)) as store:
        append(store.log, range(frames))
        store.compact()


MIXTURES: dict[str, Callable[[Path, int, str | None], None]] = {
    make.__name__: make for make in (sizes, kinds, killed, epochs, holes, compacted, threshold, dictionaries)
}
MIXTURES |= {
    name: partial(repeats, count=count)
    for name, count in {
        "alternating": lambda number: 1 + 4 * (number % 2),
        "lone_packed": lambda number: 5 if number % 500 == 0 else 1,
        "lone_plain": lambda number: 1 if number % 500 == 0 else 5,
        "packed": lambda number: 60,
    }.items()
}


def timed(act: Callable[[], object]) -> float:
    """Return the processor's time that a call takes."""
    began = time.process_time()
    act()
    return time.process_time() - began


def opened(path: Path, recovery: str = "prefix") -> float:
    """Open the log and close it; return the time of the opening alone."""
    found: list[walkit.WriteAheadLog] = []
    spent = timed(lambda: found.append(walkit.open(path, options=options(None, recovery=recovery))))
    found[0].close()
    return spent


def store_opened(path: Path) -> float:
    """Open the log as a store and close it; return the time of the opening alone."""
    found: list[walkit.Store] = []
    spent = timed(lambda: found.append(walkit.Store.open(path)))
    found[0].close()
    return spent


def measure(mixture: str, frames: int, codec: str | None, folder: str) -> Times:
    """Make a log and open it in every way; return the seconds of each."""
    path = Path(folder) / "log"
    MIXTURES[mixture](path, frames, codec)
    first = opened(path, "salvage" if mixture == "holes" else "prefix")
    times = {"first open": first, "open": statistics.median(opened(path) for _ in range(ROUNDS))}
    times["Store.open"] = statistics.median(store_opened(path) for _ in range(ROUNDS))
    times["verify"] = statistics.median(timed(lambda: walkit.verify(path)) for _ in range(ROUNDS))
    report = walkit.verify(path)
    assert report.ok and report.last_lsn >= frames, report
    return times


def main() -> int:
    """Measure each mixture at both sizes, with codec and without; print the growth and the codec's share."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--frames", type=int, default=5000)
    parser.add_argument("--mixtures", nargs="+", choices=sorted(MIXTURES), default=list(MIXTURES))
    parser.add_argument("--path", help="where to measure; default: the system's place for temporary files")
    parser.add_argument("--growth", type=float, help="fail where 10 times the frames take more times as long")
    parser.add_argument(
        "--codec", type=float, help="fail where Store.open takes more times as long with codec"
    )
    given = parser.parse_args()
    logging.disable()  # each hole is a warning
    wrong = False
    print(
        f"{'mixture':<12} {'codec':<6} {'what':<11} {given.frames:>8,} {GROWTH * given.frames:>9,}  growth  to plain"
    )
    for mixture in given.mixtures:
        plain: list[Times] = []
        for codec in (None, "zstd"):
            counts = (given.frames, GROWTH * given.frames)
            cases = [Case(f"{mixture}, {n:,} frames", partial(measure, mixture, n, codec)) for n in counts]
            with work_folder(given.path) as folder:
                (small,), (large,) = in_turns(cases, 1, folder)
            plain = plain or [small, large]
            for way, small_s in small.items():
                growth = large[way] / small_s
                shares = [found[way] / base[way] for found, base in zip((small, large), plain, strict=True)]
                over = bool(given.growth) and way in GATED and growth > given.growth
                over |= bool(given.codec) and way == "Store.open" and max(shares) > given.codec
                wrong |= over
                print(
                    f"{mixture:<12} {codec or 'none':<6} {way:<11} {small_s * 1e3:>5.1f} ms {large[way] * 1e3:>6.1f} ms"
                    f"  {growth:>6.1f}  {shares[0]:.2f}, {shares[1]:.2f}" + "  TOO MUCH" * over,
                    flush=True,
                )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
