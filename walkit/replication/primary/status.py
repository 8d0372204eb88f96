"""The status of a primary, as frozen values: what it serves, and how far each of its replicas is."""

from __future__ import annotations

import time
from dataclasses import dataclass

from walkit._internal.report import report_html
from walkit._internal.text import counted
from walkit.replication.core.lag import lag_text
from walkit.replication.core.publisher import CONTACT_MS, Publisher
from walkit.replication.core.states import StateSpan, spans_of
from walkit.replication.delta.polls import SessionStatus
from walkit.replication.primary.replica_acks import AckStatus


@dataclass(frozen=True, kw_only=True, slots=True)
class FollowerStatus:
    """One connected replica as its primary sees it: what is durable here, against what it has acknowledged.

    The lag is None where it is not known: before the welcome, and where the replica has said nothing for some time.
    """

    name: str
    """The label that it gives itself."""
    id: str
    """The key of its id, which is the name of its claim."""
    acked_lsn: int
    in_flight_bytes: int
    state: str
    """"catching up", "streaming" or "bootstrapping"; docs/replication.md has the table of states."""
    why: str
    """Why nothing comes of it now; "" where it answers."""
    state_s: float
    """For how many seconds it has been in this state."""
    lag_records: int | None
    lag_bytes: int | None
    """Bytes of frames, padding included."""
    lag_ms: float | None
    """For how long something has been durable here that it has not acknowledged."""
    history: tuple[StateSpan, ...]
    """The states of its session, oldest first."""
    held_from: int | None = None
    """The first LSN that its claim keeps for it; None where it has none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PrimaryStatus:
    """What a primary serves, and to whom. `durable_lsn` is how far replicas can come now.

    `state`: "new", "serving", "closed" (the log that it was made of is closed: replicas get the rest of it, and are
    then notified), "failed" (the log cannot be read, or may not be served, now), "stopped". `why` says it in words; ""
    where it serves.
    """

    address: str
    state: str
    why: str
    durable_lsn: int
    durable_position: int
    followers: tuple[FollowerStatus, ...]
    trouble: str = ""
    """Which peer last said what no replica says, with its address, or why a replica has no claim; "" for neither."""
    delta_readers: tuple[SessionStatus, ...] = ()
    """Readers that share the log's storage and poll: one entry for each session."""
    acks: AckStatus | None = None
    """The replicas that appends wait for; None without `ack_replicas`."""

    def _repr_html_(self) -> str:
        state = f"{self.state}: {self.why}" if self.why else self.state
        rows = [("state", state), ("durable LSN", f"{self.durable_lsn:,}")]
        rows.append(("replicas", f"{len(self.followers):,}"))
        if self.acks is not None:
            rows.append(("acknowledgement", self.acks.text()))
        rows += [
            (
                f.name,
                (
                    f"{f.state}, acknowledged LSN {f.acked_lsn:,}, lag {lag_text(f.lag_records, f.lag_ms)}, "
                    f"{counted(f.in_flight_bytes, 'byte')} in flight"
                ),
            )
            for f in self.followers
        ]
        rows += [
            ("delta reader", f"applied LSN {r.applied_lsn:,}, {r.state}, {r.held_bytes:,} bytes kept")
            for r in self.delta_readers
        ]
        if self.trouble:
            rows.append(("last trouble", self.trouble))
        return report_html(f"primary at {self.address or 'no address yet'}", rows)


def follower_status(
    core: Publisher, durable: tuple[int, int], now_ms: float, held_from: int | None
) -> FollowerStatus:
    """Return the status of the replica of this session, with (LSN, position) of what is durable now."""
    acked, silent_ms = core.acked, core.heard_ago_ms(now_ms)
    known = silent_ms <= CONTACT_MS
    since_ms = core.states.since_ms
    return FollowerStatus(
        name=core.name,
        id=core.key,
        acked_lsn=acked.last_lsn,
        in_flight_bytes=core.in_flight_bytes,
        state=core.states.shown,
        why="" if known else f"it has said nothing for {silent_ms / 1000:,.0f} s",
        state_s=0.0 if since_ms is None else max(now_ms - since_ms, 0.0) / 1000,
        lag_records=max(durable[0] - acked.last_lsn, 0) if known else None,
        lag_bytes=max(durable[1] - acked.position, 0) if known else None,
        lag_ms=core.lag.ms(now_ms) if known else None,
        history=spans_of(core.states, now_ms, time.time()),
        held_from=held_from,
    )
