"""Scenarios of a log on object storage, in files: power cuts reach each object's temporary, rename and sync."""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import dataclass, replace

from walkit.commit.policy import OneRecordPerFrame
from walkit.crashlab.consumer_scenarios import move, release, take
from walkit.crashlab.crash_rules import PROBE, BrokenRuleError, Oracle, quiet
from walkit.crashlab.promises import Promise, Row
from walkit.crashlab.scenario import SMALL, Scenario
from walkit.crashlab.script import Script
from walkit.errors import CommitFailedError, LogFencedError
from walkit.log.wal import WriteAheadLog
from walkit.models import CrashingStorage
from walkit.objects.entrance import open_log
from walkit.objects.layout import MANIFEST_KEY
from walkit.record import Kind
from walkit.storage.object_files import PUT, FileObjectStore
from walkit.store import Store


def _is_fenced(log: WriteAheadLog, value: bytes) -> bool:
    try:
        log.append(value)
    except CommitFailedError as error:
        return isinstance(error.__cause__, LogFencedError)
    return False


def _objects(script: Script) -> None:
    script.is_on_objects = True
    first = script.open()
    script.append(first, 700)
    script.submit(first, 3, 300)
    script.storage.fail("create", f"{PUT}*", times=None)  # it dies: closing it puts nothing
    first.close()
    script.storage.clear()
    script.cut_power(1)
    with script.during("recovery"):
        second = script.restarted(script.open())
    script.append(second, 300)
    script.storage.fail("sync_directory", "*")
    script.append(second, 400)
    script.submit(second, 3, 200)
    with script.during("fence"), script.open() as third:
        lsn = script.ledger.submit((Kind.PUT, None, value := script.value(100)))
        assert _is_fenced(second, value)
        script.ledger.take_back(lsn - 1)
        script.append(third, 500)
        script.submit(third, 3, 100)
        second.close()


def _puts(script: Script, store: Store, count: int) -> None:
    for number in range(count):
        script.put(store, b"key %d" % (number % 3), 12_000)


def _upkeep(script: Script) -> None:
    """Claim, renew, move, trim, take checkpoints and compact, each beside the next, and open beside the writer."""
    script.is_on_objects = True
    with script.open_store() as store:
        _puts(script, store, 10)
        with script.beside(lambda: script.trim(store.log, 4)):
            claim = take(script, 6, uuid.UUID(int=1))
            script.checkpoint(store, trim=False)
            claim.renew()
        script.trim(store.log, 9)
        assert store.log.first_lsn == 6
        with script.beside(lambda: script.compact(store)):
            _puts(script, store, 4)
            move(script, claim, 11)
            script.checkpoint(store)
        claim.renew()
        second = list[Store]()
        with script.during("fence"), script.beside(lambda: second.append(script.open_store())):
            with suppress(CommitFailedError):
                _puts(script, store, 6)
            script.ledger.take_back(script.ledger.kept)
    with second[0] as store:
        _puts(script, store, 3)
        release(script, claim)
        script.compact(store)
        script.checkpoint(store)


class _ObjectOracle(Oracle):
    """Judges a log on object storage as any log, then lets a second writer fence the first."""

    manifest_name = MANIFEST_KEY

    def _check_after(self, after: CrashingStorage, promise: Promise, rows: dict[int, Row], lsn: int) -> None:
        """See `Oracle`; then a second writer opens the log beside the first."""
        super()._check_after(after, promise, rows, lsn)
        first, second = (
            open_log(storage=self._place(after), options=self.options, events=quiet) for _ in range(2)
        )
        with first, second:
            seen = [r.lsn for r in first.read()]
            if not _is_fenced(first, PROBE):
                raise BrokenRuleError(
                    "fenced", "the first of two writers does not fail as one that is fenced"
                )
            second.append(PROBE)
            if [r.lsn for r in second.read()] != [*seen, lsn + 1]:
                raise BrokenRuleError(
                    "fenced", f"the second of two writers does not continue at LSN {lsn + 1:,}"
                )

    def _place(self, image: CrashingStorage) -> FileObjectStore:
        return FileObjectStore(image)

    def _check_names(self, image: CrashingStorage) -> None:
        """Judge the names that an opening has left: no temporary of a put."""
        if left := [name for name in image.names() if name.startswith(PUT)]:
            raise BrokenRuleError("tidy", f"{left[0]} is there after an opening")


@dataclass(frozen=True)
class _ObjectScenario(Scenario):
    def oracle(self) -> Oracle:
        """Return the judge of the states of its points."""
        return _ObjectOracle(self.options, self.is_store)


OBJECT_SCENARIOS = (
    _ObjectScenario(
        "objects",
        "a log on object storage in files is killed, recovered, and taken by a second writer, which fences the first",
        _objects,
        replace(SMALL, in_flight=3, policy=OneRecordPerFrame()),
        covers=("put", "recovery", "fence"),
    ),
    _ObjectScenario(
        "objects-maintenance",
        "a reader claims records of a Store on object storage that is trimmed, compacted, and taken by a second writer",
        _upkeep,
        replace(SMALL, in_flight=2, policy=OneRecordPerFrame()),
        is_store=True,
        covers=("put", "claim limits", "checkpoint", "records dropped", "fence"),
    ),
)
