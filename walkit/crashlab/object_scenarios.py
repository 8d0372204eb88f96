"""The scenario of a log on object storage, in files: power cuts reach each object's temporary, rename and sync."""

from __future__ import annotations

from dataclasses import dataclass, replace

from walkit.commit.policy import OneRecordPerFrame
from walkit.config import LogOptions
from walkit.crashlab.ledger import Promise, Row
from walkit.crashlab.oracle import PROBE, BrokenRuleError, Oracle, quiet
from walkit.crashlab.scenario import SMALL, Scenario
from walkit.crashlab.script import Script
from walkit.errors import CommitFailedError, LogFencedError
from walkit.log.wal import WriteAheadLog
from walkit.models import CrashingStorage
from walkit.objects.entrance import open_log
from walkit.objects.layout import MANIFEST_KEY
from walkit.record import Kind
from walkit.storage.interface import Storage
from walkit.storage.object_files import PUT, FileObjectStore


def _opened(storage: Storage, options: LogOptions) -> WriteAheadLog:
    """Open the log as another process does: with an object store of its own."""
    return open_log(storage=FileObjectStore(storage), options=options, events=quiet)


def _is_fenced(log: WriteAheadLog, value: bytes) -> bool:
    try:
        log.append(value)
    except CommitFailedError as error:
        return isinstance(error.__cause__, LogFencedError)
    return False


def _objects(script: Script) -> None:
    first = _opened(script.storage, script.options)
    script.append(first, 700)
    script.submit(first, 3, 300)
    script.storage.fail("create", f"{PUT}*", times=None)  # it dies: closing it puts nothing
    first.close()
    script.storage.clear()
    script.cut_power(1)
    with script.during("recovery"):
        second = script.restarted(_opened(script.storage, script.options))
    script.append(second, 300)
    script.storage.fail("sync_directory", "*")
    script.append(second, 400)
    script.submit(second, 3, 200)
    with script.during("fence"), _opened(script.storage, script.options) as third:
        lsn = script.ledger.submit((Kind.PUT, None, value := script.value(100)))
        assert _is_fenced(second, value)
        script.ledger.take_back(lsn - 1)
        script.append(third, 500)
        script.submit(third, 3, 100)
        second.close()


class _ObjectOracle(Oracle):
    """Judges a log on object storage as any log, then lets a second writer fence the first."""

    manifest_name = MANIFEST_KEY

    def _check_after(self, after: CrashingStorage, promise: Promise, rows: dict[int, Row], lsn: int) -> None:
        """See `Oracle`; then a second writer opens the log beside the first."""
        super()._check_after(after, promise, rows, lsn)
        with _opened(after, self.options) as first, _opened(after, self.options) as second:
            if not _is_fenced(first, PROBE):
                raise BrokenRuleError(
                    "fenced", "the first of two writers does not fail as one that is fenced"
                )
            second.append(PROBE)
            if [r.lsn for r in second.read()] != [*range(1, lsn + 2)]:
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
        return _ObjectOracle(self.options)


OBJECT_SCENARIOS = (
    _ObjectScenario(
        "objects",
        "a log on object storage in files is killed, recovered, and taken by a second writer, which fences the first",
        _objects,
        replace(SMALL, in_flight=3, policy=OneRecordPerFrame()),
        covers=("put", "recovery", "fence"),
    ),
)
