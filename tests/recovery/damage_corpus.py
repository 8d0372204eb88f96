"""A corpus of damaged logs, made by number, with the verdict of every judge of damage on each.

The undamaged logs are in `data/golden/damage/bases.zip` as bytes, so that a case is the same whatever writes logs
today. A case is a base and one to three damages, both chosen by its number. Its outcome is what opening by each
recovery policy, the reader, `scan`, `verify` and `repair` report: facts, not words. `data/golden/damage/outcomes.txt`
holds a short hash of each, so that a change that alters a judgement names the cases it alters::

    python -m tests.recovery.damage_corpus check --jobs 2        # compare all; --cases 200 for a sample
    python -m tests.recovery.damage_corpus show 1234             # damages and outcome of one case, as JSON
    python -m tests.recovery.damage_corpus check --save new.jsonl  # all outcomes, to compare two checkouts with diff
    python -m tests.recovery.damage_corpus outcomes --jobs 2     # accept today's verdicts
    python -m tests.recovery.damage_corpus bases     # rebuild the undamaged logs after a change of the format
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import logging
import random
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import walkit
from tests.support.imports import import_all, log_of_epochs, replica_on
from tests.support.in_flight_logs import Flight, torn
from walkit.errors import WalkitError
from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.models import CrashingStorage
from walkit.replication.logs.imported_log import ImportedLog
from walkit.segments.manifest_store import load_manifest
from walkit.storage.interface import Storage

FOLDER = Path(__file__).resolve().parents[2] / "data" / "golden" / "damage"
BASES, OUTCOMES = FOLDER / "bases.zip", FOLDER / "outcomes.txt"
CASES = 20_000
HASHES_A_LINE = 10
HASH_DIGITS = 8
OPTIONS: dict[str, Any] = {"segment_bytes": 64 * 1024, "frame_bytes_max": 16 * 1024, "idle_marker_ms": 0}
POLICIES = ("prefix", "holes", "absolute", "salvage")
UNTOLD = ("lock", "lock.tmp", "claims.lock")
"""Files whose bytes name the process that held a lock, so that their size depends on its command line."""

Files = dict[str, bytes]


# -- undamaged logs


@dataclass
class Base:
    """The files of an undamaged log, and manifests that it had earlier."""

    files: Files
    stale: list[bytes] = field(default_factory=list)


class Author:
    """Writes one base with walkit itself, in a folder; keeps the manifests that the log has on the way."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stale: list[bytes] = []
        self.killed: Files | None = None

    def open(self, **options: Any) -> walkit.WriteAheadLog:
        """Open the log for writing."""
        return walkit.open(self.path, options=walkit.LogOptions(**(OPTIONS | options)))

    def write(self, log: walkit.WriteAheadLog, count: int, size: int = 2900) -> None:
        """Append so many records, one a frame; note the manifest now and then."""
        for i in range(count):
            lsn = log.appended_lsn + 1
            log.append((b"%05d " % lsn * (size // 6 + 1))[: size + lsn % 7], b"key %d" % (lsn % 5))
            if i % 7 == 0:
                self.note(log)
        self.note(log)

    def note(self, log: walkit.WriteAheadLog) -> None:
        """Keep the manifest as it is now."""
        log.wait_idle()
        manifest = (self.path / "manifest").read_bytes()
        if manifest not in self.stale:
            self.stale.append(manifest)

    def kill(self, log: walkit.WriteAheadLog, without: Sequence[str] = ()) -> None:
        """Take the files as a killed writer leaves them, except those that a power cut takes."""
        self.note(log)
        self.killed = {name: data for name, data in files_below(self.path).items() if name not in without}
        log.close()

    def finish(self) -> Base:
        """Return the written files: as killed, or as closed."""
        files = files_below(self.path) if self.killed is None else self.killed
        return Base(files, [m for m in self.stale if m != files.get("manifest")])


def files_below(path: Path) -> Files:
    """Return name and bytes of every file of a log's folder."""
    found = {str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}
    return {name: data for name, data in found.items() if name not in UNTOLD}


def files_in(storage: Storage) -> Files:
    """Return name and bytes of every file of a storage, those in its folders too."""
    found: Files = {}
    for name in storage.names():
        for inner in storage.names(name[:-1]) if name.endswith("/") else [name]:
            if inner in UNTOLD:
                continue
            file = storage.open(inner, "read")
            found[inner] = file.read(0, file.size())
            file.close()
    return found


def _closed(author: Author, count: int = 44, **options: Any) -> None:
    with author.open(**options) as log:
        author.write(log, count)


def _killed(author: Author, count: int = 44, without: Sequence[str] = (), **options: Any) -> None:
    log = author.open(**options)
    author.write(log, count)
    author.kill(log, without)


def _synced_in_the_middle(author: Author, durability: str, without: Sequence[str] = ()) -> None:
    log = author.open(durability=durability, interval_ms=86_400_000 if durability == "interval" else None)
    author.write(log, 30)
    log.sync()
    author.write(log, 12)
    author.kill(log, without)


def _epochs(author: Author, *, killed: bool, **options: Any) -> None:
    for count in (9, 25, 1, 7):
        with author.open(**options) as log:
            author.write(log, count)
    log = author.open(**options)
    author.write(log, 11)
    if killed:
        author.kill(log)
    else:
        log.close()


def _everything(author: Author) -> None:
    log = author.open()
    for i in range(30):
        with log.transaction() as tx:
            for j in range(i % 4 + 1):
                tx.put(b"k%d" % j, b"%03d " % i * 150)
            tx.delete(b"k%d" % (i % 3))
        log.append_many([b"", b"event %d" % i, b"x" * (i * 37)])
        log.append(b"stamped" * 40, b"s", timestamp=i)
        if i % 5 == 0:
            author.note(log)
    author.kill(log)


def _trimmed(author: Author, *, killed: bool) -> None:
    log = author.open()
    author.write(log, 50)
    log.trim(29, waste_ratio=0.1)
    author.write(log, 8)
    if killed:
        author.kill(log)
    else:
        author.note(log)
        log.close()


def _compacted(author: Author, *, killed: bool) -> None:
    store = walkit.Store.open(author.path, options=walkit.LogOptions(**OPTIONS))
    for i in range(90):
        store.put(b"key %d" % (i % 6), b"%04d " % i * 400)
        if i % 11 == 0:
            store.delete(b"key %d" % (i % 5))
        if i % 20 == 0:
            author.note(store.log)
    store.checkpoint()
    for i in range(40):
        store.put(b"key %d" % (i % 7), b"%04d+" % i * 400)
    store.log.wait_idle()
    store.compact()
    store.put(b"last", b"one" * 500)
    if killed:
        author.note(store.log)
        author.killed = files_below(author.path)
    store.close()


def _salvaged(author: Author) -> None:
    _closed(author)
    name = sorted(p.name for p in author.path.glob("*.segment"))[1]
    data = bytearray((author.path / name).read_bytes())
    data[SEGMENT_HEADER_BYTES + 3200 : SEGMENT_HEADER_BYTES + 9000] = bytes(5800)
    (author.path / name).write_bytes(data)
    with author.open(recovery="salvage") as log:
        author.write(log, 4)
    log = author.open()
    author.write(log, 6)
    author.kill(log)


def _held(author: Author) -> None:
    log = author.open()
    author.write(log, 30)
    hold = log.hold("a-reader", 12)
    log.cursor("consumer").advance(20)
    log.trim(25)
    author.write(log, 5)
    hold.advance(28)
    author.kill(log)


AUTHORS: dict[str, Callable[[Author], None]] = {
    "closed": _closed,
    "killed": _killed,
    "killed, promised by a marker": partial(_killed, idle_marker_ms=1),
    "killed, without its durable slot": partial(_killed, without=("durable",)),
    "one record": partial(_killed, count=1),
    "none": partial(_closed, count=0),
    "killed at level none": partial(_synced_in_the_middle, durability="none"),
    "killed at level interval": partial(_synced_in_the_middle, durability="interval"),
    "power cut at level none": partial(_synced_in_the_middle, durability="none", without=("durable",)),
    "epochs": partial(_epochs, killed=False),
    "epochs, killed": partial(_epochs, killed=True),
    "direct": partial(_closed, count=36, direct_io=True),
    "direct, killed": partial(_killed, count=36, direct_io=True),
    "direct in epochs, killed": partial(_epochs, killed=True, direct_io=True),
    "compressed": partial(_closed, count=120, codec="zstd"),
    "every kind of record": _everything,
    "trimmed": partial(_trimmed, killed=False),
    "trimmed, killed": partial(_trimmed, killed=True),
    "compacted": partial(_compacted, killed=False),
    "compacted, killed": partial(_compacted, killed=True),
    "salvaged": _salvaged,
    "held": _held,
}
FLIGHTS: dict[str, tuple[Flight, tuple[int, ...], int | None]] = {
    "completion, a hole": (Flight(order="completion", base=3, flying=5), (4, 5, 7), 3),
    "completion, holes over a rotation": (
        Flight(order="completion", base=3, flying=6, second=5),
        (3, 6, 8),
        3,
    ),
    "completion, without its durable slot": (Flight(order="completion", base=2, flying=4), (3, 5), None),
    "completion, promised behind the hole": (
        Flight(order="completion", base=2, flying=5, promises={6: 6}),
        (3, 4, 5, 6),
        2,
    ),
    "frames in flight": (Flight(base=3, flying=5), (3, 5, 6), 3),
    "frames in flight over a rotation": (Flight(base=3, flying=5, second=4, marks=(5,)), (3, 4, 6), 3),
    "frames in flight, aligned": (Flight(base=2, flying=4, alignment=4096), (2, 4), 2),
}


def _imported(*, killed: bool) -> Files:
    """Return the files of a replica's log, which holds the frames of three epochs."""
    primary, storage = log_of_epochs(30, 20, 25), CrashingStorage()
    log = replica_on(storage, load_manifest(primary))
    import_all(log, primary)
    files = files_in(storage)
    log.close()
    return files if killed else files_in(storage)


def make_bases() -> dict[str, Base]:
    """Write every base again."""
    made: dict[str, Base] = {}
    for name, write in AUTHORS.items():
        folder = Path(tempfile.mkdtemp(prefix="walkit-corpus-"))
        try:
            author = Author(folder / "log")
            write(author)
            made[name] = author.finish()
        finally:
            shutil.rmtree(folder)
    for name, (flight, numbers, marked) in FLIGHTS.items():
        made[name] = Base(files_in(flight.landed(numbers, torn, marked=marked)))
    made["imported"] = Base(_imported(killed=False))
    made["imported, killed"] = Base(_imported(killed=True))
    return made


def packed(bases: dict[str, Base]) -> bytes:
    """Return the bases as a zip file: `name/file` and `name/stale/N`."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, base in bases.items():
            entries = {f"files/{n}": data for n, data in base.files.items()}
            entries |= {f"stale/{n}": data for n, data in enumerate(base.stale)}
            for entry, data in entries.items():
                archive.writestr(zipfile.ZipInfo(f"{name}/{entry}"), data, zipfile.ZIP_DEFLATED)
    return out.getvalue()


@cache
def load_bases() -> dict[str, Base]:
    """Return the bases of the repository."""
    bases: dict[str, Base] = {}
    with zipfile.ZipFile(BASES) as archive:
        for entry in archive.namelist():
            name, kind, rest = entry.split("/", 2)
            base = bases.setdefault(name, Base({}))
            if kind == "files":
                base.files[rest] = archive.read(entry)
            else:
                base.stale.append(archive.read(entry))
    return bases


# -- damage


def _segments(files: Files) -> list[str]:
    return sorted(n for n in files if n.endswith(".segment"))


def _used(data: bytes) -> int:
    return len(data.rstrip(b"\0"))


def _some_file(files: Files, chance: random.Random) -> str | None:
    """Return a file, a segment in most cases; None without one."""
    segments = _segments(files)
    others = sorted(n for n in files if n not in segments and files[n])
    if segments and (not others or chance.random() < 0.75):
        return chance.choice(segments)
    return chance.choice(others) if others else None


def _offset(data: bytes, chance: random.Random) -> int:
    """Return an offset of a byte that is in use, in a header in a third of the cases."""
    used = max(_used(data), 1)
    if chance.random() < 0.33:
        return min(chance.randrange(160), used - 1)
    return chance.randrange(used)


def flip(files: Files, chance: random.Random, base: Base) -> str:
    """Flip one to three bits of a file."""
    name = _some_file(files, chance)
    if name is None or not files[name]:
        return "nothing to flip"
    data = bytearray(files[name])
    places = []
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        at = _offset(bytes(data), chance)
        data[at] ^= 1 << chance.randrange(8)
        places.append(at)
    files[name] = bytes(data)
    return f"flip {name} at {places}"


def cut(files: Files, chance: random.Random, base: Base) -> str:
    """Cut a file short."""
    name = _some_file(files, chance)
    if name is None or not files[name]:
        return "nothing to cut"
    used = _used(files[name])
    size = chance.choice((0, 4096, chance.randrange(used + 1), max(used - chance.randrange(200), 0), used))
    files[name] = files[name][:size]
    return f"cut {name} to {size}"


def blank(files: Files, chance: random.Random, base: Base) -> str:
    """Write zeros or noise over sectors, or over any range."""
    name = _some_file(files, chance)
    if name is None or not files[name]:
        return "nothing to blank"
    data = bytearray(files[name])
    at = _offset(bytes(data), chance)
    size = chance.choice((1, 64, 512, 4096, 3000))
    if chance.random() < 0.5:
        at -= at % 512
    size = min(size, len(data) - at)
    data[at : at + size] = chance.randbytes(size) if chance.random() < 0.4 else bytes(size)
    files[name] = bytes(data)
    return f"blank {name} from {at}, {size} bytes"


def misdirect(files: Files, chance: random.Random, base: Base) -> str:
    """Write the bytes of one place of the log over another place, aligned as frames are."""
    segments = _segments(files)
    if not segments:
        return "nothing to misdirect"
    source, target = chance.choice(segments), chance.choice(segments)
    size = chance.choice((64, 512, 3072, 4096))
    start = chance.randrange(max(_used(files[source]), 64)) // 64 * 64
    at = chance.randrange(max(_used(files[target]), 64)) // 64 * 64
    piece = files[source][start : start + size]
    data = bytearray(files[target])
    data[at : at + len(piece)] = piece
    files[target] = bytes(data)
    return f"misdirect {len(piece)} bytes of {source} at {start} to {target} at {at}"


def lose(files: Files, chance: random.Random, base: Base) -> str:
    """Remove a file."""
    name = _some_file(files, chance)
    if name is None:
        return "nothing to lose"
    del files[name]
    return f"lose {name}"


def swap(files: Files, chance: random.Random, base: Base) -> str:
    """Replace one segment by another, or exchange two."""
    segments = _segments(files)
    if len(segments) < 2:
        return "nothing to swap"
    one, other = chance.sample(segments, 2)
    both = chance.random() < 0.5
    files[one], files[other] = files[other], files[one] if both else files[other]
    return f"{'exchange' if both else 'copy over'} {one} and {other}"


def foreign(files: Files, chance: random.Random, base: Base) -> str:
    """Replace one segment by one of another log, or put it beside them."""
    others = [b for b in load_bases().values() if b is not base and _segments(b.files)]
    other = chance.choice(others)
    name = chance.choice(_segments(other.files))
    segments = _segments(files)
    target = (
        chance.choice(segments)
        if segments and chance.random() < 0.7
        else f"{chance.randrange(1, 30):020d}.segment"
    )
    files[target] = other.files[name]
    return f"foreign segment as {target}"


def stale(files: Files, chance: random.Random, base: Base) -> str:
    """Put an earlier manifest back."""
    if not base.stale:
        return "no earlier manifest"
    number = chance.randrange(len(base.stale))
    files["manifest"] = base.stale[number]
    return f"stale manifest {number}"


def lengthen(files: Files, chance: random.Random, base: Base) -> str:
    """Add zeros or noise to the end of a file."""
    name = _some_file(files, chance)
    if name is None:
        return "nothing to lengthen"
    data, size = files[name], chance.choice((1, 64, 700, 5000))
    extra = bytes(size) if chance.random() < 0.3 else chance.randbytes(size)
    at = chance.choice((len(data), -(-_used(data) // 64) * 64))
    files[name] = data[:at].ljust(at, b"\0") + extra + data[at + size :]
    return f"lengthen {name} at {at} by {size}"


def nothing(files: Files, chance: random.Random, base: Base) -> str:
    """Leave the log as it is."""
    return "nothing"


Damage = Callable[[Files, random.Random, Base], str]
DAMAGES: tuple[tuple[Damage, int], ...] = (
    (flip, 30), (blank, 20), (cut, 14), (misdirect, 8), (lose, 9), (swap, 4), (foreign, 4), (stale, 6),
    (lengthen, 5), (nothing, 1),
)  # fmt: skip


@dataclass
class Case:
    """A damaged log: the damage, its base, and the files."""

    number: int
    base: str
    damages: list[str]
    files: Files

    def image(self) -> CrashingStorage:
        """Return a new storage with these files, all of them durable."""
        storage = CrashingStorage()
        storage.create()
        for name, data in self.files.items():
            file = storage.open(name, "create")
            file.write(0, [data])
            file.sync()
            file.close()
        for folder in {"", *(n.rpartition("/")[0] for n in self.files)}:
            storage.sync_directory(folder)
        return storage


def case(number: int) -> Case:
    """Return a case by its number."""
    chance = random.Random(f"walkit damage {number}")
    bases = load_bases()
    name = list(bases)[number % len(bases)]
    base = bases[name]
    files = dict(base.files)
    kinds, weights = zip(*DAMAGES, strict=True)
    done = [
        chance.choices(kinds, weights)[0](files, chance, base)
        for _ in range(chance.choice((1, 1, 1, 2, 2, 3)))
    ]
    return Case(number, name, done, files)


# -- its verdicts


def _rows_digest(records: Iterable[walkit.Record]) -> list[Any]:
    digest, count, last = hashlib.sha256(), 0, 0
    for r in records:
        digest.update(repr((r.lsn, int(r.kind), r.key, r.value, r.timestamp)).encode())
        count, last = count + 1, r.lsn
    return [count, last, digest.hexdigest()[:12]]


def _error(error: BaseException) -> dict[str, Any]:
    if not isinstance(error, WalkitError):
        return {"untyped": type(error).__name__}
    facts = ("segment", "position", "first_lost_lsn", "wanted", "oldest", "name", "reason", "first_lsn")
    told = {name: getattr(error, name) for name in facts if isinstance(getattr(error, name, None), int)}
    if isinstance(segment := getattr(error, "segment", None), str):
        told["segment"] = segment
    return {"error": error.code, **told}


def _told(judge: Callable[[], Any]) -> Any:
    try:
        return judge()
    except Exception as error:
        return _error(error)


def _sizes(storage: Storage) -> list[list[Any]]:
    # The size of a manifest depends on the random numbers in it.
    return [
        [name, 0 if name == "manifest" else len(data)] for name, data in sorted(files_in(storage).items())
    ]


def _common(report: Any) -> dict[str, Any]:
    return {
        "policy": report.policy,
        "last_lsn": report.last_lsn,
        "end_position": report.end_position,
        "cuts": [[c.segment, c.position, c.bytes, c.first_lsn, c.kept_as] for c in report.cuts],
        "holes": [[h.start_position, h.end_position, h.first_lsn, h.last_lsn] for h in report.holes],
        "lost": [[g.start_position, g.end_position, g.first_lsn, g.last_lsn, g.segment] for g in report.lost],
        "rows": [[d.segment, d.row, d.decision] for d in report.decisions],
    }


def _opened(image: CrashingStorage, policy: str) -> dict[str, Any]:
    options = walkit.LogOptions(**OPTIONS, recovery=policy)  # type: ignore[arg-type]
    with walkit.open(storage=image, options=options) as log:
        said = _common(log.recovery) | {
            "verdict": log.recovery.verdict,
            "scanned": [log.recovery.frames_scanned, log.recovery.records_scanned],
            "promised": log.recovery.promised_position,
            "marks": [log.first_lsn, log.appended_lsn, log.durable_lsn],
            "records": _told(lambda: _rows_digest(log.read())),
        }
    return said | {"files": _sizes(image)}


def _imported_again(image: CrashingStorage, policy: str) -> dict[str, Any]:
    log = ImportedLog(image, walkit.LogOptions(**OPTIONS, recovery=policy))  # type: ignore[arg-type]
    try:
        if log.recovery is None:
            return {"verdict": "empty"}
        said = _common(log.recovery) | {
            "verdict": log.recovery.verdict,
            "marks": [log.first_lsn, log.durable_lsn],
        }
        said["records"] = _told(lambda: _rows_digest(log.read()))
    finally:
        log.close()
    return said


def _read(image: CrashingStorage) -> dict[str, Any]:
    with walkit.open(storage=image, mode="r") as log:
        return {"marks": [log.first_lsn, log.durable_lsn], "records": _told(lambda: _rows_digest(log.read()))}


def _reported(report: Any) -> dict[str, Any]:
    frames = [[r.position, r.first_lsn, r.intact] for r in report.frame_rows()]
    return {
        "ok": report.ok,
        "state": report.state,
        "marks": [report.first_lsn, report.last_lsn, report.end_position, report.promised_position],
        "checked": [report.frames_checked, report.records_checked, report.bytes_checked],
        "verdict": [
            [
                r.segment,
                r.start_position,
                r.end_position,
                r.verdict.value,
                r.first_lsn,
                r.last_lsn,
                r.frames,
                r.records,
            ]
            for r in report.verdict
        ],
        "problems": [[p.error.code, p.segment, p.position, p.first_lost_lsn] for p in report.problems],
        "notes": len(report.notes),
        "frames": hashlib.sha256(repr(frames).encode()).hexdigest()[:12],
    }


def _repaired(image: CrashingStorage, policy: str) -> dict[str, Any]:
    dry = walkit.repair(image, policy=policy, dry_run=True)  # type: ignore[arg-type]
    report = walkit.repair(image, policy=policy)  # type: ignore[arg-type]
    said = _common(report) | {
        "changed": report.changed,
        "rebuilt": report.manifest_rebuilt,
        "ok": report.ok,
        "first_lsn": report.first_lsn,
        "dry": _common(dry) == _common(report) and dry.changed == report.changed,
    }
    return said | {"files": _sizes(image), "then": _told(lambda: _read(image))}


def outcome(damaged: Case) -> dict[str, Any]:
    """Return every judge's verdict on a case, as plain values."""
    return {
        **{f"open {p}": _told(partial(_opened, damaged.image(), p)) for p in POLICIES},
        **{f"import {p}": _told(partial(_imported_again, damaged.image(), p)) for p in ("prefix", "salvage")},
        "reader": _told(partial(_read, damaged.image())),
        "scan": _told(lambda: _reported(walkit.scan(damaged.image()))),
        "verify": _told(lambda: _reported(walkit.verify(damaged.image()))),
        **{f"repair {p}": _told(partial(_repaired, damaged.image(), p)) for p in ("prefix", "salvage")},
    }


def hash_of(said: dict[str, Any]) -> str:
    """Return the short hash for the golden file."""
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()[:HASH_DIGITS]


def run(number: int) -> tuple[int, str, str]:
    """Return (number, hash, JSON) of a case."""
    damaged = case(number)
    said = outcome(damaged)
    line = {"case": number, "base": damaged.base, "damages": damaged.damages, "outcome": said}
    return number, hash_of(said), json.dumps(line, sort_keys=True, default=str)


def golden_hashes() -> list[str]:
    """Return the hash of every case, by number."""
    return OUTCOMES.read_text(encoding="ascii").split()


# -- command line


def outcomes_of(numbers: Sequence[int], jobs: int) -> Iterator[tuple[int, str, str]]:
    """Run cases, in order."""
    if jobs == 1:
        yield from map(run, numbers)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(run, numbers, chunksize=20)


def main() -> int:
    """Run one of the commands that the module's words name; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", choices=("bases", "outcomes", "check", "show"))
    parser.add_argument("case", type=int, nargs="?", default=0)
    parser.add_argument("--cases", type=int, default=CASES, help="check so many, spread over all")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--save", type=Path, help="write every outcome as a line of JSON")
    arguments = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    logging.getLogger("walkit").setLevel(logging.CRITICAL)
    if arguments.command == "bases":
        BASES.write_bytes(packed(make_bases()))
        return 0
    if arguments.command == "show":
        print(json.dumps(json.loads(run(arguments.case)[2]), indent=1))
        return 0
    numbers = range(0, CASES, CASES // arguments.cases if arguments.command == "check" else 1)
    golden = golden_hashes() if arguments.command == "check" else []
    different, hashes = [], []
    with (arguments.save or Path("/dev/null")).open("w", encoding="ascii") as saved:
        for number, found, line in outcomes_of(numbers, arguments.jobs):
            print(line, file=saved)
            hashes.append(found)
            if golden and golden[number] != found:
                different.append(number)
            if number % 1000 == 0:
                print(f"case {number:,} of {CASES:,}; {len(different):,} differ", file=sys.stderr)
    if arguments.command == "outcomes":
        lines = [hashes[i : i + HASHES_A_LINE] for i in range(0, len(hashes), HASHES_A_LINE)]
        OUTCOMES.write_text("".join(" ".join(line) + "\n" for line in lines), encoding="ascii")
        return 0
    print(f"{len(hashes) - len(different):,} of {len(hashes):,} cases as before")
    for number in different[:50]:
        print(f"differs: case {number}")
    return 1 if different else 0


if __name__ == "__main__":
    raise SystemExit(main())
