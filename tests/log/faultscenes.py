"""The scenes of the fault loop: every public operation that calls the storage, in as few runs as will do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

import pyarrow as pa

import walkit
from tests.commit.fake_segments import wait_until
from tests.log import crashes, damaged_logs
from tests.log.damaged_logs import HARMS, flip, wreck
from tests.log.everycall import EveryCall
from tests.log.faultloop import Ledger, Row, Scene
from tests.log.imports import bytes_of, import_all, log_of_epochs, replica_on, runs_after
from walkit.format.manifest import MANIFEST_NAME
from walkit.format.names import UNFINISHED_NAMES
from walkit.format.segment import segment_name
from walkit.models import CrashingStorage
from walkit.record import encode_bundle
from walkit.replication.logs.imported_log import ImportedLog
from walkit.segments.manifest_store import load_manifest
from walkit.storage.interface import Storage

Made = TypeVar("Made")
Given = ParamSpec("Given")

SETTLE_S = 20.0
SMALL = walkit.LogOptions(segment_bytes=64 * 1024, frame_bytes_max=8 * 1024, idle_marker_ms=0)
BUNDLE = pa.RecordBatch.from_pydict({"n": [1, 2, 3]})
_making = threading.RLock()


def once(make: Callable[Given, Made]) -> Callable[Given, Made]:
    """Return `make` with a cache that makes each thing once, whichever of the runs side by side ask first.

    A second log of the same kind would have another id: what one run imported would not follow what another looks for.
    """
    cached = cache(make)

    @wraps(make)
    def made(*arguments: Given.args, **named: Given.kwargs) -> Made:
        with _making:
            return cached(*arguments, **named)  # type: ignore[arg-type]

    return made


def settled(log: walkit.WriteAheadLog) -> None:
    """Wait until the maintenance thread has done all that it was asked for, or the log has failed."""
    done = threading.Event()
    maintenance = log.parts.segments.maintenance
    maintenance.submit("index", done.set)  # the last in its order
    for _ in range(int(SETTLE_S / 0.002)):
        if done.wait(0.002) or log.parts.core.failure is not None:
            return
    raise AssertionError("the maintenance thread does nothing any more")


def put(value: bytes, key: bytes | None = None) -> Row:
    return 1, key, value


def append_in_all_ways(log: walkit.WriteAheadLog, ledger: Ledger, tag: bytes = b"") -> None:
    """Append at least one record in each way there is."""
    value = tag + b"v" * 300
    ledger.appended("append", [put(value, b"k")], lambda: log.append(value, b"k"))
    ledger.appended("append with a timeout", [put(value)], lambda: log.append(value, timeout=20))
    ledger.appended("delete", [(2, b"k", None)], lambda: log.delete(b"k"))

    def transaction() -> walkit.AppendResult | None:
        with log.transaction() as tx:
            tx.put(b"a", value)
            tx.delete(b"b")
            tx.append(b"event")
        return tx.result

    ledger.appended("transaction", [put(value, b"a"), (2, b"b", None), put(b"event")], transaction)
    many = [tag + b"m%d" % i * 60 for i in range(3)]
    ledger.appended("append_many", [put(v) for v in many], lambda: log.append_many(many))
    table = pa.table({"key": pa.array([b"x", b"y"], pa.binary()), "value": pa.array(many[:2], pa.binary())})
    ledger.appended("append_arrow", [put(many[0], b"x"), put(many[1], b"y")], lambda: log.append_arrow(table))
    ledger.appended(
        "append_bundle", [(3, b"z", encode_bundle(BUNDLE))], lambda: log.append_bundle(BUNDLE, b"z")
    )
    group = [tag + b"g"] * 2
    ledger.appended("submit_many", [put(v) for v in group], lambda: log.submit_many(group).result())
    ledger.outcomes(
        "append_async", [put(tag + b"one"), put(tag + b"two")], _async(log, [tag + b"one", tag + b"two"])
    )
    burst(log, ledger, 10, 700)


def _async(log: walkit.WriteAheadLog, values: list[bytes]) -> list[Callable[[], Any]]:
    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*[log.append_async(v) for v in values], return_exceptions=True)

    return [_said(outcome) for outcome in asyncio.run(all_of_them())]


def _said(outcome: Any) -> Callable[[], Any]:
    def say() -> Any:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    return say


def burst(log: walkit.WriteAheadLog, ledger: Ledger, count: int, size: int) -> None:
    """Submit many records before any of them is waited for."""
    values = [b"%04d" % i * (size // 4) for i in range(count)]
    results: list[Callable[[], Any]] = []
    for value in values:
        try:
            results.append(log.submit(value).result)
        except walkit.WalkitError as error:
            results.append(_said(error))
    ledger.outcomes("submit", [put(v) for v in values], results)


class LogScene:
    """A scene of a log: it begins with nothing, and what it leaves is opened and compared."""

    def fitted(self, options: walkit.LogOptions) -> walkit.LogOptions:
        return options

    def image(self, ledger: Ledger) -> CrashingStorage:
        return CrashingStorage()

    def look(self, storage: Storage, ledger: Ledger) -> None:
        look_at_log(storage, ledger)


class Appending(LogScene):
    """A new log, over three segments until closed: appends, syncs, a cursor; its maintenance zeroes, seals."""

    def play(self, storage: EveryCall, ledger: Ledger) -> Callable[[], object] | None:
        log = ledger.step("open", lambda: walkit.open(storage=storage, options=ledger.options))
        if log is None:
            return None
        append_in_all_ways(log, ledger)
        ledger.called_durable(log.durable_lsn)
        ledger.called_durable(ledger.step("sync", log.sync))
        burst(log, ledger, 8, 6000)
        settled(log)
        cursor = ledger.step("cursor", lambda: log.cursor("reader"))
        if cursor is not None:
            ledger.step("advance", lambda: cursor.advance(log.acked_lsn))
            ledger.called_durable(cursor.lsn)
        burst(log, ledger, 4, 6000)
        ledger.called_durable(ledger.step("sync again", log.sync))
        burst(log, ledger, 8, 6000)
        settled(log)
        append_in_all_ways(log, ledger, b"again ")
        ledger.called_durable(log.durable_lsn)
        return closing(log, ledger)


class Zeroing(LogScene):
    """One large segment, which is zeroed ahead of the frames, step by step; when it is idle a mark is written."""

    def fitted(self, options: walkit.LogOptions) -> walkit.LogOptions:
        return replace(options, segment_bytes=3 << 20, frame_bytes_max=64 * 1024, idle_marker_ms=2)

    def play(self, storage: EveryCall, ledger: Ledger) -> Callable[[], object] | None:
        log = ledger.step("open", lambda: walkit.open(storage=storage, options=ledger.options))
        if log is None:
            return None
        values = [b"%02d" % n * 7000 for n in range(24)]
        for value in values:  # past where zeroing ahead begins
            ledger.appended("append", [put(value)], lambda value=value: log.append(value))  # type: ignore[misc]
        ledger.called_durable(log.durable_lsn)
        settled(log)
        ledger.appended("append", [put(b"behind")], lambda: log.append(b"behind"))
        ledger.called_durable(ledger.step("sync", log.sync))
        core = log.parts.core
        wait_until(lambda: not core.needs_marker or core.failure is not None, "a mark")
        ledger.called_durable(log.durable_lsn)
        return closing(log, ledger)


def closing(log: walkit.WriteAheadLog, ledger: Ledger) -> Callable[[], object]:
    """Return what closes a log: it is closed then, also where that raises."""

    def close() -> None:
        try:
            log.close()
        finally:
            assert log.closed
            ledger.called_durable(log.durable_lsn)
        ledger.in_order = log.statistics().poisoned == 0

    return close


def look_at_log(storage: Storage, ledger: Ledger) -> None:
    """Open what a log has left, compare, append, close, and read it once more from outside."""
    with walkit.open(storage=storage, options=ledger.options) as log:
        ledger.check_records(log.read(), log.first_lsn, log.acked_lsn)
        verdict = log.recovery.verdict
        assert not ledger.in_order or verdict == "clean", f"closed without an error, and {verdict}"
        result = log.append(b"goes on")
    with walkit.open(storage=storage, mode="r") as reader:
        assert reader.durable_lsn == result.last_lsn


@once
def closed_log(count: int, in_flight: int, ack_order: Any) -> tuple[CrashingStorage, list[Row]]:
    """Return a closed log of so many records, eight to a segment, and its rows."""
    storage, rows = CrashingStorage(), [put(b"%03d" % n * 2300, b"key %d" % (n % 5)) for n in range(count)]
    options = walkit.LogOptions(
        segment_bytes=64 * 1024, frame_bytes_max=8 * 1024, in_flight=in_flight, ack_order=ack_order
    )
    with walkit.open(storage=storage, options=options) as log:
        for _, key, value in rows:
            log.append(value, key)
    return storage, rows


class FromClosed(LogScene):
    """A scene that begins with a closed log of five segments."""

    def image(self, ledger: Ledger) -> CrashingStorage:
        storage, rows = closed_log(36, ledger.options.in_flight, ledger.options.ack_order)
        ledger.rows = list(rows)
        ledger.called_durable(len(rows))
        return storage.process_kill()


class Trimming(FromClosed):
    """Holds, trims with and without a rewriting, retention asked for, a drain, appends in between."""

    def play(self, storage: EveryCall, ledger: Ledger) -> Callable[[], object] | None:
        log = ledger.step("open", lambda: walkit.open(storage=storage, options=ledger.options))
        if log is None:
            return None
        ledger.low_watermark = 9
        hold = ledger.step("hold", lambda: log.hold("slow", 10))
        if hold is not None:
            ledger.step("trim to a hold", lambda: log.trim(15, waste_ratio=0.0))
            ledger.step("release", hold.release)
        burst(log, ledger, 6, 6000)
        ledger.low_watermark = 20
        ledger.step("trim", lambda: log.trim(20, waste_ratio=0.0))
        ledger.low_watermark = max(len(ledger.rows) - 1, ledger.low_watermark)  # by whole segments
        ledger.step("retention", lambda: log.enforce_retention(walkit.Retention(records_max=14)))
        burst(log, ledger, 6, 6000)
        ledger.called_durable(log.durable_lsn)
        last = len(ledger.rows) - 4
        ledger.low_watermark = max(last, ledger.low_watermark)
        ledger.step("drain", lambda: list(log.drain(last)))
        ledger.called_durable(log.durable_lsn)
        ledger.appended("append", [put(b"last")], lambda: log.append(b"last"))
        return closing(log, ledger)


class Claiming(FromClosed):
    """A claim through the same storage, advanced, renewed, released, with trims in between that must keep to it."""

    def play(self, storage: EveryCall, ledger: Ledger) -> Callable[[], object] | None:
        log = ledger.step("open", lambda: walkit.open(storage=storage, options=ledger.options))
        if log is None:
            return None
        ledger.low_watermark = 20
        claim = ledger.step("claim", lambda: walkit.claim(storage, "slow", 10, wait_s=1))
        ledger.step("trim to a claim", lambda: log.trim(15, waste_ratio=0.0))
        if claim is not None:
            assert log.first_lsn <= 10, "a claim was passed"
            ledger.step("advance", lambda: claim.advance(13))
            first = claim.first_lsn
            ledger.step("trim again", lambda: log.trim(20, waste_ratio=0.0))
            assert log.first_lsn <= 13, "a claim was passed"
            if first == 13:
                ledger.step("renew", claim.renew)
            ledger.step("release", claim.release)
        burst(log, ledger, 6, 6000)
        ledger.step("trim", lambda: log.trim(20, waste_ratio=0.0))
        ledger.called_durable(log.durable_lsn)
        return closing(log, ledger)


class Retaining(LogScene):
    """A log that keeps itself small on its maintenance thread while it is appended to."""

    def fitted(self, options: walkit.LogOptions) -> walkit.LogOptions:
        return replace(options, retention=walkit.Retention(bytes_max=70_000))

    def play(self, storage: EveryCall, ledger: Ledger) -> Callable[[], object] | None:
        log = ledger.step("open", lambda: walkit.open(storage=storage, options=ledger.options))
        if log is None:
            return None
        for _ in range(4):
            ledger.low_watermark = len(ledger.rows) + 8 - 1
            burst(log, ledger, 8, 6000)
            settled(log)
            ledger.called_durable(log.durable_lsn)
        return closing(log, ledger)


def state_of(rows: list[Row]) -> dict[bytes, bytes | None]:
    """Return what a store holds after these records."""
    state: dict[bytes, bytes | None] = {}
    for kind, key, value in rows:
        if key is not None and kind == 1:
            state[key] = value
        elif key is not None:
            state.pop(key, None)
    return state


@once
def killed_store() -> tuple[CrashingStorage, list[Row]]:
    """Return what a killed process left of a store with a snapshot and most keys written over, and its rows."""
    storage = CrashingStorage()
    rows = [put(b"%03d" % n * 2300, b"key %d" % (n % 7)) for n in range(30)]
    store = walkit.Store.open(storage=storage, options=SMALL)
    for number, (_, key, value) in enumerate(rows):
        store.put(key, value)
        if number == 9:
            store.snapshot()
    store.log.wait_idle()
    image = storage.process_kill()
    store.close()
    return image, rows


class Keeping(LogScene):
    """A store that a killed process left: recovered, changed, checkpointed, compacted, closed."""

    store_options: walkit.StoreOptions | None = None

    def image(self, ledger: Ledger) -> CrashingStorage:
        image, rows = killed_store()
        ledger.rows = list(rows)
        ledger.called_durable(len(rows))
        return image.process_kill()

    def play(self, storage: EveryCall, ledger: Ledger) -> Callable[[], object] | None:
        store = ledger.step(
            "open",
            lambda: walkit.Store.open(
                storage=storage, options=ledger.options, store_options=self.store_options
            ),
        )
        if store is None:
            return None
        ledger.low_watermark = len(ledger.rows)
        self.act(store, ledger)
        ledger.called_durable(store.log.durable_lsn)
        return closing(store.log, ledger)

    def act(self, store: walkit.Store, ledger: Ledger) -> None:
        self.change(store, ledger, 4)
        ledger.step("checkpoint", lambda: store.checkpoint(trim=False))
        ledger.low_watermark = len(ledger.rows)
        ledger.step("compact", store.compact)
        self.change(store, ledger, 10)
        ledger.step("compact again", store.compact)
        ledger.low_watermark = len(ledger.rows)
        ledger.step("checkpoint and trim", store.checkpoint)
        self.change(store, ledger, 2)
        ledger.step("snapshot", store.snapshot)

    def change(self, store: walkit.Store, ledger: Ledger, count: int) -> None:
        for number in range(count):
            key, value = b"key %d" % (number % 6), b"%03d" % len(ledger.rows) * 1500
            ledger.appended("put", [put(value, key)], lambda key=key, value=value: store.put(key, value))  # type: ignore[misc]
        ledger.appended("delete", [(2, b"key 6", None)], lambda: store.delete(b"key 6"))
        keys, values = [b"key 1", b"key 2"], [b"many 1", b"many 2"]
        ledger.appended(
            "put_many", [put(v, k) for k, v in zip(keys, values, strict=True)],
            lambda: store.put_many(keys, values),
        )  # fmt: skip

    def look(self, storage: Storage, ledger: Ledger) -> None:
        with walkit.Store.open(storage=storage, options=ledger.options) as store:
            lsn = store.log.acked_lsn
            assert lsn >= max(ledger.promised()), f"ends at {lsn}, promised {max(ledger.promised())}"
            assert lsn <= len(ledger.rows), f"ends at {lsn}, appended {len(ledger.rows)}"
            assert dict(store.items()) == state_of(ledger.rows[:lsn]), "another state than that of a prefix"
            for record in store.log.read():
                assert (int(record.kind), record.key, record.value) == ledger.rows[record.lsn - 1]
            store.put(b"goes", b"on")


class KeepingByItself(Keeping):
    """The same store with a journal, which takes its checkpoints by itself and lets no append in before them."""

    store_options = walkit.StoreOptions(journal_slots=64, checkpoint_every=6)

    def act(self, store: walkit.Store, ledger: Ledger) -> None:
        for _ in range(4):
            ledger.low_watermark = len(ledger.rows) + 14
            self.change(store, ledger, 10)


@once
def killed_log(options: walkit.LogOptions) -> tuple[CrashingStorage, list[Row], int]:
    """Return what a killed process left of a log in use: its rows, and the last LSN that is durable.

    Sealed segments, one in use with a torn tail, one made ahead, and files that were half written or are needless.
    """
    storage, ledger = CrashingStorage(), Ledger(options)
    log = walkit.open(storage=storage, options=options)
    append_in_all_ways(log, ledger)
    burst(log, ledger, 20, 6000)
    durable = log.sync()
    for number in range(3):
        value = b"tail %d" % number * 300
        ledger.appended("append", [put(value)], lambda value=value: log.append(value))  # type: ignore[misc]
    settled(log)
    segment = log.parts.segments.open_segments[-1]
    assert segment.header is not None
    segment.file.write(segment.header.offset_of(segment.end_position), [b"WLKF" + b"torn" * 50])
    image = storage.process_kill()
    log.close()
    for name in (*UNFINISHED_NAMES, "manifest.new", segment_name(99), f"{segment_name(98)}.index"):
        file = image.open(name, "create")
        file.write(0, [bytes(100) if name.startswith("0") else b"half of it"])
        file.sync()
    image.sync_directory()
    return image, ledger.rows, durable if options.durability != "sync" else len(ledger.rows)


class Recovering(LogScene):
    """The opening after a kill, which seals, cuts, sets aside and removes; then the opening after that."""

    def image(self, ledger: Ledger) -> CrashingStorage:
        image, rows, durable = killed_log(ledger.options)
        ledger.rows = list(rows)
        ledger.called_durable(durable)
        return image.process_kill()

    def play(self, storage: EveryCall, ledger: Ledger) -> Callable[[], object] | None:
        log = ledger.step("open", lambda: walkit.open(storage=storage, options=ledger.options))
        if log is None:
            log = ledger.step("open again", lambda: walkit.open(storage=storage, options=ledger.options))
        if log is None:
            return None
        ledger.called_durable(log.durable_lsn)
        return closing(log, ledger)


class Repairing:
    """A log with damage in two segments and none in its manifest's favour: repaired by salvage, opened, looked at."""

    harm = next(h for h in HARMS if h.name == "killed: sealed and open damage")

    def fitted(self, options: walkit.LogOptions) -> walkit.LogOptions:
        return replace(damaged_logs.OPTIONS, recovery="salvage")

    def image(self, ledger: Ledger) -> CrashingStorage:
        image = wreck(closed=self.harm.closed)
        self.harm.do(image)
        ledger.rows = [
            put(damaged_logs.value_of(lsn), b"key %d" % (lsn % 3))
            for lsn in range(1, damaged_logs.RECORDS + 1)
        ]
        ledger.acknowledged = {lsn for lsn, _ in damaged_logs.rows_without(*self.harm.lost)}
        ledger.given_up = set(self.harm.lost)
        return image

    def play(self, storage: EveryCall, ledger: Ledger) -> Callable[[], object] | None:
        ledger.step("repair", lambda: walkit.repair(storage, policy="salvage"))
        return None

    def look(self, storage: Storage, ledger: Ledger) -> None:
        walkit.repair(storage, policy="salvage")
        report = walkit.verify(storage)
        assert report.ok, f"verify after a repair: {report.problems}"
        self.look_at_rest(storage, ledger)

    def look_at_rest(self, storage: Storage, ledger: Ledger) -> None:
        """Compare; what a file held that could not be opened is given up, and the manifest says so."""
        with walkit.open(storage=storage, options=ledger.options) as log:
            lost = log.parts.manifest_store.current.lost
        given_up = {lsn for part in lost for lsn in range(part.first_lsn, part.last_lsn + 1)}
        look_at_log(storage, replace(ledger, given_up=ledger.given_up | given_up))


class RepairingMore(Repairing):
    """The same without a manifest, and with a damaged segment header beside a damaged frame."""

    harm = next(h for h in HARMS if h.name == "killed: the open segment's header and first frame")

    def image(self, ledger: Ledger) -> CrashingStorage:
        image = super().image(ledger)
        flip(image, MANIFEST_NAME, 100)
        return image


class Salvaging(Repairing):
    """The first damage, met by an opening with policy salvage."""

    def play(self, storage: EveryCall, ledger: Ledger) -> Callable[[], object] | None:
        log = ledger.step("open", lambda: walkit.open(storage=storage, options=ledger.options))
        return None if log is None else closing(log, ledger)

    def look(self, storage: Storage, ledger: Ledger) -> None:
        self.look_at_rest(storage, ledger)


@once
def primary_log() -> tuple[CrashingStorage, list[Row]]:
    """Return a closed log of two epochs over several segments, and its rows."""
    storage = log_of_epochs(14, 12)
    with walkit.open(storage=storage.process_kill(), mode="r") as reader:
        return storage, [(int(r.kind), r.key, r.value) for r in reader.read()]


class Importing:
    """A replica's log: adopted, filled from two epochs of its primary, closed, opened, filled to the end."""

    def fitted(self, options: walkit.LogOptions) -> walkit.LogOptions:
        return crashes.SMALL

    def image(self, ledger: Ledger) -> CrashingStorage:
        ledger.rows = primary_log()[1]
        return CrashingStorage()

    def play(self, storage: EveryCall, ledger: Ledger) -> Callable[[], object] | None:
        primary = primary_log()[0]
        manifest = load_manifest(primary)
        log = self.opened(storage, ledger)
        if log is None or not log.adopted:
            return None if log is None else log.close
        runs = list(runs_after(primary, log.end, 3))
        for number, run in enumerate(runs):
            if number == len(runs) // 2:
                ledger.step("close halfway", log.close)
                log = self.opened(storage, ledger)
                if log is None or not log.adopted:
                    return None if log is None else log.close
            lineage = tuple(e for e in manifest.lineage if e.number <= run.identity.epoch)
            if log.end == run.after:
                ledger.step("import", lambda run=run, lineage=lineage, log=log: log.import_run(run, lineage))  # type: ignore[misc]
                ledger.called_durable(log.durable_lsn)
        return log.close

    def opened(self, storage: EveryCall, ledger: Ledger) -> ImportedLog | None:
        """Open the replica's log, and adopt it where it is new; None where it did not open."""
        log = ledger.step("open", lambda: ImportedLog(storage, ledger.options))
        if log is not None and not log.adopted:
            primary = load_manifest(primary_log()[0])
            ledger.step(
                "adopt",
                lambda: log.adopt(
                    primary.log_id, created_us=primary.created_us, ack_order=primary.ack_order, extra={}
                ),
            )
        return log

    def look(self, storage: Storage, ledger: Ledger) -> None:
        primary = primary_log()[0]
        log = replica_on(storage, load_manifest(primary))
        if log.durable_lsn:
            ledger.check_records(log.read(), log.first_lsn, log.durable_lsn)
        assert log.durable_lsn >= max(ledger.promised(), default=0)
        import_all(log, primary)
        log.close()
        assert isinstance(storage, CrashingStorage)
        assert bytes_of(storage) == bytes_of(primary), "not the frames of the primary"


class Reading(Recovering):
    """Readers of a killed writer's log: records, a cursor, scan and verify. They change nothing but the cursor."""

    def play(self, storage: EveryCall, ledger: Ledger) -> Callable[[], object] | None:
        reader = ledger.step("open", lambda: walkit.open(storage=storage, mode="r"))
        if reader is not None:
            ledger.called_durable(ledger.step("durable", lambda: reader.durable_lsn))
            rows = ledger.step("read", lambda: [(int(r.kind), r.key, r.value) for r in reader.read()])
            assert rows is None or rows == ledger.rows[: len(rows)]
            followed = ledger.step("follow", lambda: list(reader.follow(1, timeout=0)))
            ledger.called_durable(None if not followed else followed[-1].lsn)
            cursor = ledger.step("cursor", lambda: reader.cursor("mine"))
            if cursor is not None:
                ledger.step("advance", lambda: cursor.advance(3))
        ledger.step("scan", lambda: walkit.scan(storage))
        ledger.step("verify", lambda: walkit.verify(storage))
        return None


SCENES: dict[str, Scene] = {
    "appending": Appending(),
    "zeroing": Zeroing(),
    "trimming": Trimming(),
    "claiming": Claiming(),
    "retaining": Retaining(),
    "a store": Keeping(),
    "a store by itself": KeepingByItself(),
    "recovering": Recovering(),
    "salvaging": Salvaging(),
    "repairing": Repairing(),
    "repairing without a manifest": RepairingMore(),
    "importing": Importing(),
    "reading": Reading(),
}
