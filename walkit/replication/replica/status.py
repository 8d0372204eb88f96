"""The status of a replica, as a frozen value: its state, its lag if known, and why it does not advance."""

from __future__ import annotations

import time
from dataclasses import dataclass

from walkit._internal.report import fields_html
from walkit.format.manifest import LogEnd
from walkit.replication.core.lag import lag_text
from walkit.replication.core.publisher import CONTACT_MS
from walkit.replication.core.states import StateSpan, spans_of
from walkit.replication.core.subscriber import Subscriber

STALL_MS = 1_000.0
"""Frames that are known of and have not come for this time are worth a word."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaStatus:
    """One moment of a replica.

    `state`: "new", "connecting" (no contact), "bootstrapping" (it fetches the whole log), "catching up" (it lacks
    records that the primary had when that state began), "streaming" (it has all but the frames of the last moment),
    "rewinding" (its log is being cut back to where the histories part), "absent" (its storage is away, and is tried
    until it is back), "failed" (for good: `error` has the cause), "stopped". docs/replication.md has the table of
    states.

    The lag is None while unknown: without contact, or if the primary has sent nothing for some time.
    """

    state: str
    source: str
    """Address of the primary."""
    name: str
    """The replica's label."""
    id: str
    """The key of its id, a digest in hexadecimal digits; "" before the first contact."""
    lsn: int
    """Last LSN on this replica's stable storage."""
    applied_lsn: int
    """Last LSN applied to the replica's store."""
    source_lsn: int | None
    """Last LSN that the primary has said is on its stable storage; None if this replica has heard of none."""
    lag_records: int | None
    lag_bytes: int | None
    """Bytes of frames, padding included."""
    lag_ms: float | None
    """For how long the replica has known of a record that it does not have yet."""
    reconnects: int
    duplicates: int
    gaps: int
    error: str | None
    trouble: str
    """Why the last connection ended; "" if none did."""
    reason: str
    """The same as one word: "closed" (the primary's log or the primary), "absent", "damage", "level", "protocol" as
    the primary gave it; "connection", "silence", "frames" (they came damaged); "failure". "" if no connection ended.
    """
    detail: str
    """Why it does not advance now; "" if it does, or has all that there is."""
    stalled_s: float | None
    """For how long it has not; None if `detail` is ""."""
    state_s: float | None
    """For how many seconds it has been in this state; None before `start`."""
    history: tuple[StateSpan, ...]
    """Its states since `start`, oldest first; at most the newest 64."""

    @property
    def since(self) -> float | None:
        """When it stopped to advance, in seconds since 1970; None if `detail` is ""."""
        return None if self.stalled_s is None else time.time() - self.stalled_s

    def line(self) -> str:
        """Return one line: the state, how far it is, and why it does not advance and since when."""
        of = "" if self.source_lsn is None else f" of {self.source_lsn:,}"
        text = f"{self.state}: LSN {self.lsn:,}{of}, lag {lag_text(self.lag_records, self.lag_ms)}"
        if self.since is not None:
            clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
            text += f"; does not advance since {clock}: {self.detail}"
        return text

    def _repr_html_(self) -> str:
        return fields_html(f"replica {self.name}", self)


def replica_status(
    core: Subscriber, end: LogEnd, *, source: str, applied_lsn: int, life: str, waiting: bool, now_ms: float
) -> ReplicaStatus:
    """Return the status of a replica with this core, whose log ends at `end`.

    `life` is "new", "rewinding", "absent" or "stopped", or "" while its thread runs; `waiting` says that messages have
    come and wait.
    """
    heard_ms, since_ms = core.heard_ms, core.since_ms
    contact = not life and core.state == "streaming" and heard_ms is not None
    known = heard_ms is not None and contact and (waiting or now_ms - heard_ms <= CONTACT_MS)
    missing = max(core.lag.source_lsn - end.last_lsn, 0)
    missing_bytes = max(core.lag.source_position - end.position, 0)
    state = life or core.states.shown
    state_ms = core.states.since_ms
    detail, from_ms = "", since_ms
    if state == "failed":
        detail = str(core.error)
    elif state in ("connecting", "absent"):
        detail = core.trouble or f"{source} has not answered yet"
    elif contact and not known:
        detail, from_ms = "the primary is connected and says nothing", heard_ms
    elif missing and since_ms is not None and not waiting:
        from_ms = max(since_ms, now_ms - core.lag.ms(now_ms))
        if contact and now_ms - from_ms > STALL_MS:
            detail = (
                "frames came damaged" if core.damaged_here else "the frames that are missing have not come"
            )
    return ReplicaStatus(
        state=state,
        source=source,
        name=core.name,
        id="" if core.identity is None else core.identity.key,
        lsn=end.last_lsn,
        applied_lsn=applied_lsn,
        source_lsn=max(core.lag.source_lsn, end.last_lsn) if core.welcomed else None,
        lag_records=missing if known else None,
        lag_bytes=missing_bytes if known else None,
        lag_ms=core.lag.ms(now_ms) if known else None,
        reconnects=max(core.connections - 1, 0),
        duplicates=core.duplicates,
        gaps=core.gaps,
        error=None if core.error is None else str(core.error),
        trouble=core.trouble,
        reason=core.reason,
        detail=detail,
        stalled_s=max(now_ms - (now_ms if from_ms is None else from_ms), 0.0) / 1000 if detail else None,
        state_s=None if state_ms is None else max(now_ms - state_ms, 0.0) / 1000,
        history=spans_of(core.states, now_ms, time.time()),
    )
