"""Random histories, damage, faults and peers: a heal removes no intact record, and adds only original ones."""

from __future__ import annotations

import errno
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import pytest

import walkit
from tests.replication.blocking_callers import WAIT_S
from tests.replication.healing.test_heal import contents, segments
from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.models import FaultyStorage
from walkit.recovery.log_scan import read_durable_slot
from walkit.replication import HealReport, Primary, Replica, heal, promote
from walkit.segments.manifest_store import DURABLE_NAME, load_manifest
from walkit.storage import FileStorage, Storage

PLAIN = walkit.LogOptions(segment_bytes=64 * 1024, idle_marker_ms=0)
DAMAGES = 6


def flipped_at(chance: random.Random, data: bytes, below: int) -> bytes:
    at = chance.randrange(min(below, len(data)))
    return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]


def noisy(chance: random.Random, data: bytes) -> bytes:
    at = chance.randrange(len(data))
    noise = chance.randbytes(min(chance.randrange(1, 9_000), len(data) - at))
    return data[:at] + noise + data[at + len(noise) :]


SPOIL: tuple[Callable[[random.Random, bytes], bytes | None], ...] = (
    lambda chance, data: None,
    lambda chance, data: data[: chance.randrange(len(data))],
    lambda chance, data: flipped_at(chance, data, len(data)),
    lambda chance, data: flipped_at(chance, data, SEGMENT_HEADER_BYTES),
    lambda chance, data: data[: (at := chance.randrange(len(data)))] + bytes(len(data) - at),
    lambda chance, data: bytes(SEGMENT_HEADER_BYTES) + data[SEGMENT_HEADER_BYTES:],
    noisy,
)


def spoil(chance: random.Random, log: Path) -> None:
    """Damage one to three places of a log."""
    for _ in range(chance.choice((1, 1, 2, 3))):
        there = segments(log)
        if not there:
            return
        path = chance.choice(there[-4:] if chance.randrange(3) else there)
        data = path.read_bytes()
        after = chance.choice(SPOIL)(chance, data) if data else None
        if after is None:
            path.unlink()
        else:
            path.write_bytes(after)


@dataclass
class World:
    """A log that was copied at several moments, and its original records."""

    place: Path
    chance: random.Random
    values: dict[int, bytes] = field(default_factory=dict)
    moments: dict[Path, int] = field(default_factory=dict)
    """Copies of its folder, and how many records were durable then."""

    def build(self) -> None:
        """Write in one to three epochs, in small and large frames; some copies are taken before the log is closed."""
        chance, order = self.chance, self.chance.choice(("append", "append", "completion"))
        for _ in range(chance.choice((1, 2, 3))):
            options = walkit.LogOptions(
                segment_bytes=chance.choice((64, 128)) * 1024,
                in_flight=chance.choice((1, 4)),
                codec=chance.choice((None, "zstd")),
                direct_io=chance.random() < 0.25,
                idle_marker_ms=chance.choice((0, 1)),
                ack_order="completion" if order == "completion" else "append",
            )
            with walkit.open(self.place / "log", options=options) as log:
                for _ in range(chance.choice((1, 2, 3))):
                    self._append(log, chance.choice((1, 3, 10, 40)))
                    log.wait_idle()  # a copy file by file needs a log at rest
                    self._copy(log.durable_lsn)
                durable = log.durable_lsn
            self._copy(durable)

    def _append(self, log: walkit.WriteAheadLog, frames: int) -> None:
        for _ in range(frames):
            values = [
                b"%d:" % len(self.values) + self.chance.randbytes(self.chance.choice((5, 500, 3000)))
                for _ in range(self.chance.choice((1, 1, 3)))
            ]
            last = log.append_many(values).last_lsn
            self.values |= {last - len(values) + 1 + i: value for i, value in enumerate(values)}

    def _copy(self, durable: int) -> None:
        copy = self.place / f"copy {len(self.moments)}"
        self.moments[Path(shutil.copytree(self.place / "log", copy))] = durable

    @contextmanager
    def peers(self) -> Iterator[list[Primary]]:
        """Serve an earlier copy, the last one, a replica, a promoted one, and a copy that went its own way."""
        earlier, last = self.chance.choice([*self.moments]), [*self.moments][-1]
        replica, promoted, other = (self.place / name for name in ("replica", "promoted", "other"))
        served = [shutil.copytree(earlier, self.place / "served"), shutil.copytree(last, self.place / "last")]
        with Primary(earlier) as primary, Replica(replica, primary.address, options=PLAIN) as following:
            following.wait_for(self.moments[earlier], WAIT_S)
            self.moments[Path(shutil.copytree(replica, self.place / "copy of it"))] = self.moments[earlier]
        promote(shutil.copytree(replica, promoted))
        for folder in (promoted, Path(shutil.copytree(earlier, other))):
            with walkit.open(folder, options=PLAIN) as log:
                for _ in range(self.chance.choice((0, 1, 30))):
                    log.append(b"of its own" * 30)
        with ExitStack() as stack:
            yield [stack.enter_context(Primary(folder)) for folder in (*served, replica, promoted, other)]


def _promised(log: Path) -> int:
    """Return the last LSN that the manifest seals or the durable slot names: what an opening must not give up."""
    storage = FileStorage(str(log))
    manifest, slot = load_manifest(storage), read_durable_slot(storage)
    known = slot.lsn if slot.epoch_id in {e.id for e in manifest.lineage} else 0
    return max(known, manifest.end.last_lsn)


def _opened(log: Path) -> tuple[Literal["whole", "damaged", "refused"], dict[int, bytes]]:
    """Open a copy of a log, and read it."""
    copy = Path(shutil.copytree(log, log.parent / "opened"))
    try:
        with walkit.open(copy, options=PLAIN) as opened:
            try:
                return "whole", {record.lsn: bytes(record.value or b"") for record in opened.read()}
            except walkit.WalkitError:
                return "damaged", {}
    except walkit.WalkitError:
        return "refused", {}
    finally:
        shutil.rmtree(copy)


def _with_faults(log: Path, chance: random.Random) -> Storage:
    """Return the storage of a log some of whose reads fail."""
    storage = FaultyStorage(FileStorage(str(log)))
    for _ in range(2):
        storage.fail(
            chance.choice(("read", "read", "open")),
            "*.segment",
            nth=chance.randrange(1, 12),
            times=chance.choice((1, 3, None)),
            errno=chance.choice((errno.EIO, errno.EMFILE)),
        )
    return storage


def _check_heal(world: World, log: Path, peer: Primary) -> None:
    """Heal a log dry and in earnest, and hold what the reports say against what it was before and is now."""
    before, files, promised = _opened(log), contents(log), _promised(log)
    faulty = world.chance.random() < 0.2
    reports: list[HealReport] = []
    with suppress(walkit.WalkitError):
        for dry_run in (True, False):
            place = _with_faults(log, world.chance) if faulty else FileStorage(str(log))
            reports.append(heal(place, peer.address, dry_run=dry_run))
            assert not dry_run or contents(log) == files
    assert not any(name.endswith(".new") for name in contents(log))
    after = _opened(log)
    if len(reports) == 2 and not faulty:
        told = [replace(segment, kept_as="") for segment in reports[1].segments]
        assert told[: len(reports[0].segments)] == [*reports[0].segments]
    if len(reports) == 2 and reports[1].ok:
        assert after[0] == "whole"
        assert max(after[1], default=0) >= promised
    assert before[0] == "refused" or after[0] != "refused"
    if before[0] == after[0] == "whole":
        assert before[1].items() <= after[1].items()
    assert all(world.values.get(lsn) == value for lsn, value in after[1].items())


# slow: other seeds of the same draw
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 50))])
def test_a_heal_takes_away_nothing_that_stands(tmp_path: Path, seed: int) -> None:
    """Damage copies of a log and of its replica, put old slots back, and heal them from five peers, also with EIO."""
    world = World(tmp_path, random.Random(seed))
    world.build()
    with world.peers() as peers:
        for number in range(DAMAGES):
            moment, durable = world.chance.choice([*world.moments.items()])
            damaged = Path(shutil.copytree(moment, tmp_path / f"damaged {number}"))
            if world.chance.random() < 0.4:
                older = world.chance.choice([m for m, lsn in world.moments.items() if lsn <= durable])
                shutil.copyfile(older / DURABLE_NAME, damaged / DURABLE_NAME)
            with suppress(FileNotFoundError):
                spoil(world.chance, damaged)
            if not segments(damaged):
                continue
            for which, peer in enumerate(peers):
                log = Path(shutil.copytree(damaged, tmp_path / f"healed {number} {which}"))
                _check_heal(world, log, peer)
                shutil.rmtree(log)
