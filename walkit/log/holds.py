"""Holds: named leases, taken in the writer's process, that keep records from being trimmed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from walkit._arguments import as_lsn, as_seconds
from walkit._html import titled
from walkit._locks import once
from walkit.commit.to_end import run_to_end
from walkit.errors import GapError, LogClosedError, OptionsError
from walkit.events import EventSink
from walkit.format.manifest import HoldRecord, Manifest
from walkit.log.claims import ClaimTable
from walkit.log.contents import LogContents
from walkit.log.lifetime import Lifetime
from walkit.log.orphan_files import OrphanFiles
from walkit.record import wall_us
from walkit.segments.maintenance_worker import MaintenanceWorker
from walkit.segments.manifest_store import ManifestStore

LEASE_S_DEFAULT = 3600.0
NAME_CHARS_MAX = 256
"""A name stands in the manifest, which has a limit: one over it would keep the log from being written."""
RENEWALS = 3
"""A hold of a log that lives is saved anew so many times in its lease, if nothing else saves it."""
RENEW_S_MIN = 0.5
"""And not more often than this: a lease of less than a few times this can be over when its process is killed."""
LEASE_S_MAX = 100 * 365 * 86_400.0
"""A hundred years: a claim that is wanted without an end has one, and its end still fits the manifest."""


def check_lease(lease_s: float) -> float:
    """Return a lease in seconds; OptionsError for one that no hold can have."""
    lease_s = as_seconds(lease_s, "lease_s")
    if not 0 < lease_s <= LEASE_S_MAX:
        raise OptionsError(
            f"lease_s={lease_s!r}: a hold has a lease of more than 0 seconds, and at most {LEASE_S_MAX:,.0f}",
            option="lease_s",
            wanted=lease_s,
        )
    return lease_s


class HoldTable:
    """The holds of an open log: those of this process, and those of the manifest. Safe from any thread."""

    def __init__(
        self,
        manifest_store: ManifestStore,
        contents: LogContents,
        orphan_files: OrphanFiles,
        lifetime: Lifetime,
        claims: ClaimTable,
        maintenance: MaintenanceWorker,
        events: EventSink,
    ) -> None:
        self.claims = claims
        """What consumers in other processes need."""
        self.mine: dict[str, Hold] = {}
        """By name, those that this process has now."""
        self.contents = contents
        self.lifetime = lifetime
        self._manifest_store = manifest_store
        self._orphan_files = orphan_files
        self._maintenance = maintenance
        self._events = events
        self._released: set[str] = set()
        """Names that this process has given up, or has had to: what the manifest says of them counts no more."""

    def take(self, name: str, first_lsn: int, lease_s: float) -> Hold:
        """Take or take over the hold of this name; persisted on return. GapError where the record is gone already.

        OptionsError for a name, an LSN or a lease that cannot be: they are checked before they can reach the manifest.
        """
        if not isinstance(name, str) or not 1 <= len(name) <= NAME_CHARS_MAX:
            shown = repr(name)[: NAME_CHARS_MAX // 4]
            raise OptionsError(
                f"name={shown}: a hold has a name of 1 to {NAME_CHARS_MAX} characters",
                option="name",
                wanted=name,
            )
        first_lsn, lease_s = as_lsn(first_lsn, "first_lsn"), check_lease(lease_s)
        return run_to_end(lambda: self._take(name, first_lsn, lease_s), "hold", events=self._events)

    def _take(self, name: str, first_lsn: int, lease_s: float) -> Hold:
        with self._events.held(), once(self._orphan_files.lock), self._orphan_files.lock:
            oldest = self.contents.first_lsn
            if first_lsn < oldest:
                raise GapError(first_lsn, oldest)
            hold, previous = Hold(self, name, first_lsn, lease_s), self.mine.get(name)
            self.mine[name] = hold
            try:
                self._save()
            except BaseException:
                del self.mine[name]
                if previous is not None:
                    self.mine[name] = previous
                raise
            self._released.discard(name)
            self._check()
        # A log may be trimmed seldom, or never while it lives: what is saved must not lapse meanwhile.
        self._maintenance.every(self._period_s(), self._renew, "renew")
        self._maintenance.submit("renew", self._renew)  # it starts the thread
        return hold

    def _period_s(self) -> float:
        """Return how often the holds of this process are looked at, in seconds."""
        shortest = min((h.lease_s for h in list(self.mine.values())), default=LEASE_S_DEFAULT)
        return max(shortest / RENEWALS, RENEW_S_MIN)

    def _renew(self) -> None:
        """Save the holds of this process anew where one was not for a part of its lease; on the maintenance thread.

        Frames may wait for that thread, so it waits for no lock: the thread that has the one of the orphan files saves
        the holds, too, or the next look does.
        """
        lock = self._orphan_files.lock
        if not self._is_renewal_due():
            return
        with once(lock):
            if lock.acquire(blocking=False):
                try:
                    self._save()
                finally:
                    lock.release()

    def _is_renewal_due(self) -> bool:
        now_us = wall_us()
        saved = {record.name: record.lease_until_us for record in self._manifest_store.current.holds}
        return any(
            saved.get(hold.name, 0) - now_us <= hold.lease_s * 1e6 * (1 - 0.9 / RENEWALS)
            for hold in list(self.mine.values())
        )

    def _check(self) -> None:
        """Assert that what the holds of this process claim is there, and that they count; while no trim runs.

        The log may be closing meanwhile, by another thread or after a second Ctrl-C: then they stand until their leases
        are over.
        """
        oldest = self.contents.first_lsn
        for name, hold in list(self.mine.items()):
            assert hold.name == name and not hold.dropped and name not in self._released
            assert oldest <= hold.first_lsn, "records that are held were dropped"

    def has(self, hold: Hold) -> bool:
        """Say whether this very hold is the one of its name."""
        return self.mine.get(hold.name) is hold

    def release(self, hold: Hold) -> None:
        """Give up a hold, where this table has it; durable on return."""

        def release() -> None:
            # The lock: one of the same name may be taken at this moment.
            with self._events.held(), once(self._orphan_files.lock), self._orphan_files.lock:
                if self.has(hold):
                    del self.mine[hold.name]
                    self._released.add(hold.name)
                    self._save()

        run_to_end(release, "hold", events=self._events)

    def leave(self, hold: Hold) -> None:
        """Let a hold stand in the manifest without its holder, until its lease is over; where this table has it."""

        def leave() -> None:
            with self._events.held(), once(self._orphan_files.lock), self._orphan_files.lock:
                if self.has(hold):
                    self._save()
                    del self.mine[hold.name]

        run_to_end(leave, "hold", events=self._events)

    def live(self, manifest: Manifest, *, tell: bool = True) -> tuple[HoldRecord, ...]:
        """Return the holds that count now: those of this process, renewed, and others whose lease still runs.

        With `tell` an event says which have run out: for a caller that leaves them out of the next manifest, and holds
        events (`EventSink.held`) while it has the locks for that.
        """
        now_us = wall_us()
        kept = [
            HoldRecord(name=h.name, first_lsn=h.first_lsn, lease_until_us=now_us + int(h.lease_s * 1e6))
            for h in list(self.mine.values())
        ]
        mine = {h.name for h in kept}
        for record in manifest.holds:
            if record.name in mine or record.name in self._released:
                continue
            if record.lease_until_us > now_us:
                kept.append(record)
            elif tell:
                self._events.emit("walkit.hold.expire", name=record.name, first_lsn=record.first_lsn)
        return tuple(sorted(kept, key=lambda h: h.name))

    def oldest_needed(self, manifest: Manifest) -> int | None:
        """Return the oldest record that a hold or a claim needs now; None where none is needed."""
        needs = (*self.live(manifest, tell=False), *self.claims.live(manifest))
        return min((need.first_lsn for need in needs), default=None)

    @contextmanager
    def dropping(self, names: Iterable[str]) -> Iterator[tuple[HoldRecord, ...]]:
        """Leave holds out of the manifest that is written in this block; where that fails, they stand as before.

        Needs the lock of the orphan files held.
        """
        gone = set(names)
        lost = tuple(h for h in self.live(self._manifest_store.current, tell=False) if h.name in gone)
        mine = {name: self.mine.pop(name) for name in gone if name in self.mine}
        new = gone - self._released
        self._released |= new
        for hold in mine.values():
            hold.dropped = True
        try:
            yield lost
        except BaseException:
            for hold in mine.values():
                hold.dropped = False
            self.mine.update(mine)
            self._released -= new
            raise

    def _save(self) -> None:
        """Write the holds of now into the manifest."""
        with self._events.held():  # a manifest is replaced under a lock
            self._manifest_store.update(lambda m: m.next(holds=self.live(m)))


class Hold:
    """A lease on the records from `first_lsn` on: they are still needed.

    Persisted in the manifest with a lease: while the log is open it is renewed there, a few times in the lease and at
    most twice a second, after its process has died it keeps the log back until the lease runs out. Safe from any
    thread.
    """

    def __init__(self, table: HoldTable, name: str, first_lsn: int, lease_s: float) -> None:
        self._table = table
        self.name = name
        self.first_lsn = first_lsn
        self.lease_s = lease_s
        self.dropped = False
        """Whether retention has dropped it, because the log was over its hard cap."""

    def move(self, lsn: int) -> None:
        """Say that records below `lsn` are no longer needed. Saved with the next trim or renewal; never moves back.

        GapError where retention has dropped the hold, because the log was over its hard cap: what it claimed is gone.
        """
        if self.dropped:
            raise GapError(self.first_lsn, self._table.contents.first_lsn)
        closed = self._table.lifetime.closed
        if closed or not self._table.has(self):
            raise LogClosedError("the log is closed" if closed else f"the hold {self.name!r} was released")
        lsn = as_lsn(lsn)
        if lsn < self.first_lsn:
            raise OptionsError(
                f"the hold {self.name!r} stands at {self.first_lsn} and does not move back to {lsn}",
                option="lsn",
                wanted=lsn,
                stored=self.first_lsn,
            )
        self.first_lsn = lsn

    def release(self) -> None:
        """Give the claim up; durable on return. Releasing twice does nothing.

        LogClosedError once the log is closed: the claim stands then until its lease is over.
        """
        if self._table.lifetime.closed:
            raise LogClosedError(f"the log is closed; the hold {self.name!r} stands until its lease is over")
        self._table.release(self)

    def leave(self) -> None:
        """Let the claim stand without its holder: durable as it is now, it counts until its lease is over.

        For a consumer that went away and may come back; it takes the claim over by its name.
        """
        if not self._table.lifetime.closed:
            self._table.leave(self)

    @property
    def state(self) -> str:
        """How the claim stands: "held", "dropped" (by the hard cap of a retention), "log closed", or "given up"."""
        if self.dropped:
            return "dropped"
        if self._table.lifetime.closed:
            return "log closed"
        return "held" if self._table.has(self) else "given up"

    def __repr__(self) -> str:
        return f"Hold({self.name!r}, first_lsn={self.first_lsn})"

    def _repr_html_(self) -> str:
        return titled(
            f"Hold {self.name}",
            [
                ("first LSN needed", f"{self.first_lsn:,}"),
                ("lease", f"{self.lease_s:,g} s"),
                ("state", self.state),
            ],
        )
