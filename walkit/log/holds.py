"""Holds: named claims that keep records from being trimmed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from walkit.commit.to_end import run_to_end
from walkit.config import as_lsn, as_seconds
from walkit.errors import GapError, LogClosedError, OptionsError
from walkit.format.manifest import HoldRecord, Manifest
from walkit.html import titled

if TYPE_CHECKING:
    from walkit.log.engine import LogEngine

LEASE_S_DEFAULT = 3600.0
NAME_CHARS_MAX = 256
"""A name stands in the manifest, which has a limit: one over it would keep the log from being written."""
LEASE_S_MAX = 100 * 365 * 86_400.0
"""A hundred years: who wants a claim without an end has one, and its end still fits the manifest."""


class Hold:
    """A claim that records from `first_lsn` on are still needed.

    Persisted in the manifest with a lease: while the object lives the log renews it, after its process has died it
    keeps the log back until the lease runs out. Safe from any thread.
    """

    def __init__(self, engine: LogEngine, name: str, first_lsn: int, lease_s: float) -> None:
        self._engine = engine
        self.name = name
        self.first_lsn = first_lsn
        self.lease_s = lease_s
        self._dropped = False

    def move(self, lsn: int) -> None:
        """Say that records below `lsn` are no longer needed. Saved with the next trim; never moves back.

        GapError where retention has dropped the hold, because the log was over its hard cap: what it claimed is gone.
        """
        if self._dropped:
            raise GapError(self.first_lsn, self._engine.first_lsn)
        if self._engine.closed or self._engine.holds.get(self.name) is not self:
            what = "the log is closed" if self._engine.closed else f"the hold {self.name!r} was released"
            raise LogClosedError(what)
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
        if self._engine.closed:
            raise LogClosedError(f"the log is closed; the hold {self.name!r} stands until its lease is over")
        if self._engine.holds.get(self.name) is self:
            del self._engine.holds[self.name]
            self._engine.released.add(self.name)
            save_holds(self._engine)

    def leave(self) -> None:
        """Let the claim stand without its holder: durable as it is now, it counts until its lease is over.

        For a consumer that went away and may come back; it takes the claim over by its name.
        """
        if not self._engine.closed and self._engine.holds.get(self.name) is self:
            save_holds(self._engine)
            del self._engine.holds[self.name]

    @property
    def state(self) -> str:
        """How the claim stands: "held", "dropped" (by the hard cap of a retention), "log closed", or "given up"."""
        if self._dropped:
            return "dropped"
        if self._engine.closed:
            return "log closed"
        return "held" if self._engine.holds.get(self.name) is self else "given up"

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


def make_hold(engine: LogEngine, name: str, first_lsn: int, lease_s: float) -> Hold:
    """Take or take over the hold of this name; persisted on return. GapError where the record is gone already.

    OptionsError for a name, an LSN or a lease that cannot be: they are checked before they can reach the manifest.
    """
    if not isinstance(name, str) or not 1 <= len(name) <= NAME_CHARS_MAX:
        shown = repr(name)[: NAME_CHARS_MAX // 4]
        raise OptionsError(
            f"name={shown}: a hold has a name of 1 to {NAME_CHARS_MAX} characters", option="name", wanted=name
        )
    first_lsn, lease_s = as_lsn(first_lsn, "first_lsn"), as_seconds(lease_s, "lease_s")
    if not 0 < lease_s <= LEASE_S_MAX:
        raise OptionsError(
            f"lease_s={lease_s!r}: a hold has a lease of more than 0 seconds, and at most {LEASE_S_MAX:,.0f}",
            option="lease_s",
            wanted=lease_s,
        )
    return run_to_end(lambda: _make_hold(engine, name, first_lsn, lease_s), "hold", events=engine.events)


def _make_hold(engine: LogEngine, name: str, first_lsn: int, lease_s: float) -> Hold:
    with engine.trimming:
        if first_lsn < engine.first_lsn:
            raise GapError(first_lsn, engine.first_lsn)
        hold, previous = Hold(engine, name, first_lsn, lease_s), engine.holds.get(name)
        engine.holds[name] = hold
        try:
            save_holds(engine)
        except BaseException:
            del engine.holds[name]
            if previous is not None:
                engine.holds[name] = previous
            raise
        engine.released.discard(name)
    return hold


def live_holds(engine: LogEngine, manifest: Manifest, *, tell: bool = True) -> tuple[HoldRecord, ...]:
    """Return the holds that count now: those of this process, renewed, and others whose lease still runs.

    With `tell` an event says which have run out: for who leaves them out of the next manifest.
    """
    now_us = time.time_ns() // 1000
    kept = [
        HoldRecord(name=h.name, first_lsn=h.first_lsn, lease_until_us=now_us + int(h.lease_s * 1e6))
        for h in list(engine.holds.values())
    ]
    mine = {h.name for h in kept}
    for record in manifest.holds:
        if record.name in mine or record.name in engine.released:
            continue
        if record.lease_until_us > now_us:
            kept.append(record)
        elif tell:
            engine.events.emit("walkit.hold.expire", name=record.name, first_lsn=record.first_lsn)
    return tuple(sorted(kept, key=lambda h: h.name))


@contextmanager
def drop_holds(engine: LogEngine, names: Iterable[str]) -> Iterator[tuple[HoldRecord, ...]]:
    """Leave holds out of the manifest that is written in this block; where that fails, they stand as before.

    The caller holds `engine.trimming`.
    """
    gone = set(names)
    lost = tuple(h for h in live_holds(engine, engine.store.current, tell=False) if h.name in gone)
    mine = {name: engine.holds.pop(name) for name in gone if name in engine.holds}
    new = gone - engine.released
    engine.released |= new
    for hold in mine.values():
        hold._dropped = True
    try:
        yield lost
    except BaseException:
        for hold in mine.values():
            hold._dropped = False
        engine.holds.update(mine)
        engine.released -= new
        raise


def save_holds(engine: LogEngine) -> None:
    """Write the holds of now into the manifest."""
    run_to_end(
        lambda: engine.store.update(lambda m: m.next(holds=live_holds(engine, m))),
        "hold",
        events=engine.events,
    )
