"""Scenarios of a replica's folder: frames are imported, a log is gathered, a replica is promoted, a log is rewound.

The primary is on another disk. Frames and parts of files go from one disk to the other, without a network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from walkit.config import LogOptions
from walkit.copier.gathering import Gathering
from walkit.crashlab.crash_rules import PROBE, BrokenRuleError, Oracle, quiet
from walkit.crashlab.failing_script import FailingScript
from walkit.crashlab.fault_scenarios import OTHERS, Target, failing_scenario
from walkit.crashlab.promises import Promise, Row
from walkit.crashlab.scenario import Scenario
from walkit.crashlab.script import Script
from walkit.events import EventSink
from walkit.format.manifest import MANIFEST_NAME
from walkit.models import CrashingStorage
from walkit.objects.entrance import open_log
from walkit.record import Kind
from walkit.recovery.verify import verify
from walkit.replication.logs.folder_role import is_promoted
from walkit.replication.logs.imported_log import ImportedLog
from walkit.replication.logs.plan_check import gather_plan
from walkit.replication.logs.source import source_of
from walkit.replication.primary.bootstrap_plan import BootstrapFiles, SnapshotChecks
from walkit.replication.primary.frame_reader import FrameReader
from walkit.replication.replica.promote import promote
from walkit.replication.replica.rewind import rewind
from walkit.segments.manifest_store import load_manifest
from walkit.storage.interface import Storage
from walkit.store import Store

RUN_BYTES, PART_BYTES = 30_000, 40_000
COMMON_LSN = 7
"""The last record that a log and its primary have in common before a rewind."""


def _opened(storage: Storage, options: LogOptions, primary: CrashingStorage) -> ImportedLog:
    """Open a replica's log, adopted."""
    log = ImportedLog(storage, options, EventSink(quiet))
    try:
        if not log.adopted:
            manifest = load_manifest(primary)
            log.adopt(manifest.log_id, created_us=manifest.created_us, ack_order=manifest.ack_order, extra={})
    except BaseException:
        log.close()
        raise
    return log


def _imports(
    log: ImportedLog, primary: CrashingStorage, begins: Callable[[int], object] = lambda lsn: None
) -> Iterator[int]:
    """Import the frames after the end of a replica's log; call `begins` before each run, and yield its last LSN."""
    reader = FrameReader(source_of(primary))
    while run := reader.read(log.end, RUN_BYTES):
        begins(run.end.last_lsn)
        log.import_run(run, tuple(e for e in reader.lineage() if e.number <= run.identity.epoch))
        yield run.end.last_lsn


class _Primary:
    """A Store on a disk of its own, whose log a replica on the script's disk is to have."""

    def __init__(self, script: Script, storage: CrashingStorage | None = None) -> None:
        self._script, self.storage = script, storage or CrashingStorage()
        self.rows: list[Row] = []
        if storage is not None:
            with open_log(storage=storage, mode="r", events=quiet) as reader:
                self.rows = [(int(r.kind), r.key, r.value) for r in reader.read()]

    def write(self, last_lsn: int, *, checkpoint_at: int = 0) -> None:
        """Open it, put records up to this LSN, close it: an epoch."""
        options = self._script.options
        with Store.open(storage=self.storage, options=options, events=quiet) as store:
            for lsn in range(len(self.rows) + 1, last_lsn + 1):
                key, value = b"key %d" % (lsn % 3), self._script.value(12_000)
                self.rows.append((Kind.PUT, key, value))
                assert store.put(key, value).last_lsn == lsn
                if lsn == checkpoint_at:
                    store.checkpoint()
        self._script.ledger.source = self.storage.process_kill()

    def opened(self) -> ImportedLog:
        """Open the replica's log."""
        log = _opened(self._script.storage, self._script.options, self.storage)
        maintenance = log.segments.maintenance
        self._script.storage.job = lambda: maintenance.doing
        return log

    def send(self, log: ImportedLog, last_lsn: int = 0) -> None:
        """Import runs, until this LSN is there; each is promised when it is imported."""
        script = self._script
        with script.during("import"):
            for lsn in _imports(log, self.storage, self._note_submitted):
                script.ledger.keep(lsn)
                if 0 < last_lsn <= lsn:
                    return

    def _note_submitted(self, last_lsn: int) -> None:
        self._script.ledger.submit(*self.rows[len(self._script.ledger.rows) : last_lsn])

    def gather(self, log: ImportedLog) -> None:
        """Gather the primary's log beside a replica's, which is too far behind, and put it in its place."""
        script, manifest = self._script, log.manifest
        source = source_of(self.storage)
        planned = BootstrapFiles(source, SnapshotChecks(self.storage, EventSink(quiet)))
        gathering = Gathering(script.storage)
        missing = gather_plan(gathering, planned.plan, manifest.log_id, manifest.lineage)
        for part in missing:
            for offset in range(part.offset, part.size, PART_BYTES):
                size = min(PART_BYTES, part.size - offset)
                gathering.store(part.file, offset, planned.read(part.file, offset, size))
        planned.close()
        self._note_submitted(len(self.rows))
        script.may_drop(load_manifest(self.storage).low_watermark)
        gathering.finish()
        log.reopen()
        script.ledger.keep(log.durable_lsn)


def _import(script: Script) -> None:
    primary = _Primary(script)
    for last_lsn in (7, 18):
        primary.write(last_lsn)
    log = primary.opened()
    primary.send(log, 6)
    log.close()
    script.cut_power(3)
    log = primary.opened()
    assert log.durable_lsn == script.ledger.kept
    primary.send(log)
    log.close()


def _importing(script: FailingScript) -> None:
    primary = _Primary(script)
    for last_lsn in (7, 12):
        primary.write(last_lsn)
    _import_rest(script)


def _import_rest(script: FailingScript) -> None:
    primary = _Primary(script, script.ledger.source)
    log = primary.opened()
    try:
        script.ledger.restart(log.durable_lsn)
        primary.send(log)
    finally:
        log.close()


def _followed(script: Script, last_lsn: int) -> tuple[_Primary, ImportedLog]:
    """Return a primary with records up to this LSN, and the log of a replica that has them."""
    primary = _Primary(script)
    primary.write(last_lsn)
    log = primary.opened()
    primary.send(log)
    return primary, log


def _bootstrap(script: Script) -> None:
    primary, log = _followed(script, 4)
    primary.write(13, checkpoint_at=9)
    with script.during("bootstrap"):
        primary.gather(log)
    assert log.durable_lsn == 13
    primary.write(16)
    primary.send(log)
    log.close()


def _promotion(script: Script) -> None:
    _, log = _followed(script, 8)
    log.close()
    with script.during("promotion"):
        assert promote(script.storage, events=quiet).first_lsn == 9
    with script.open_store() as store:
        script.put(store, b"key 1", 5_000)


def _rewind(script: Script) -> None:
    with script.open_store() as store:
        for number in range(COMMON_LSN):
            script.put(store, b"key %d" % (number % 3), 12_000)
        primary = _Primary(script, script.storage.inner.process_kill())
        if script.chance.random() < 0.7:  # it fails over within a segment, or at its end
            _written_on(script, store)
    if len(script.ledger.rows) == COMMON_LSN:
        with script.open_store() as store:
            _written_on(script, store)
    primary.write(12)
    script.ledger.kept = COMMON_LSN
    with script.during("rewind"):
        rewind(script.storage, COMMON_LSN + 1, events=quiet)
    script.ledger.take_back(COMMON_LSN)
    log = primary.opened()
    primary.send(log)
    log.close()


def _written_on(script: Script, store: Store) -> None:
    for number in range(10):
        script.put(store, b"key %d" % (number % 4), 9_000)
    script.checkpoint(store, trim=False)


def _has_parted(log: ImportedLog, primary: CrashingStorage) -> bool:
    """Say whether a log has records that its primary has not."""
    ours, theirs = log.manifest.lineage, load_manifest(primary).lineage
    known = {epoch.id for epoch in ours}
    return not {*ours} <= {*theirs} or any(
        epoch.first_lsn <= log.durable_lsn for epoch in theirs if epoch.id not in known
    )


class _ReplicaOracle(Oracle):
    """Judges a replica's folder as any log, then lets it follow its primary, promotes it, and appends to it."""

    def judge(self, image: CrashingStorage, promise: Promise) -> None:
        """See `Oracle`."""
        replica = image.process_kill()
        super().judge(image, promise)
        try:
            self._follow(replica, promise)
        except BrokenRuleError:
            raise
        except Exception as error:  # whatever it raises is a finding
            raise BrokenRuleError("next", f"as a replica: {type(error).__name__}: {error}") from error

    def _finish(self, image: CrashingStorage, promise: Promise) -> None:
        """See `Oracle`; the source is the primary, of which this log is not a copy to continue."""

    def _follow(self, image: CrashingStorage, promise: Promise) -> None:
        primary = promise.source
        if primary is None:
            return
        promised = promise.kept
        own = load_manifest(image) if MANIFEST_NAME in image.names() else None
        if own is None or not is_promoted(own):
            log = _opened(image, self.options, primary)
            if _has_parted(log, primary):
                log.close()
                rewind(image, COMMON_LSN + 1, options=self.options, events=quiet)
                promised = COMMON_LSN
                log = _opened(image, self.options, primary)
            try:
                for _ in _imports(log, primary):
                    pass
                if log.end != load_manifest(primary).end:
                    raise BrokenRuleError("next", f"as a replica it ends at {log.end}, not as its primary")
            finally:
                log.close()
        first_lsn = promote(image, events=quiet).first_lsn
        with open_log(storage=image, options=self.options, events=quiet) as promoted:
            lsn = promoted.append(PROBE).first_lsn
        if lsn < first_lsn or lsn <= promised or not verify(image).ok:
            text = f"promoted at LSN {first_lsn:,}, it gives LSN {lsn:,}, or is damaged"
            raise BrokenRuleError("next", text)


@dataclass(frozen=True)
class _ReplicaScenario(Scenario):
    is_store: bool = True

    def oracle(self) -> Oracle:
        """Return the judge of the states of its points."""
        return _ReplicaOracle(self.options, self.is_store)


REPLICA_SCENARIOS: tuple[Scenario, ...] = (
    _ReplicaScenario(
        "import",
        "a replica imports two epochs of its primary, over several segments and a power cut",
        _import,
        covers=("import", "append", "prepare", "seal"),
    ),
    failing_scenario(
        "faults-import",
        "the same without the power cut: operations of the import fail, and it is continued",
        _importing,
        (Target(60, covers="import"), Target(12, job="prepare"), Target(90, OTHERS), Target(60)),
        is_store=True,
        resume=_import_rest,
        kind=_ReplicaScenario,
    ),
    _ReplicaScenario(
        "bootstrap",
        "a replica needs records that its primary has trimmed: it gathers log and snapshot, and replaces its own log",
        _bootstrap,
        covers=("bootstrap", "import", "manifest", "removal"),
    ),
    _ReplicaScenario(
        "promotion",
        "a replica is promoted and written on",
        _promotion,
        covers=("promotion", "manifest"),
    ),
    _ReplicaScenario(
        "rewind",
        "a log that was written on beside its new primary is rewound, and follows it",
        _rewind,
        covers=("rewind", "manifest", "import"),
    ),
)
