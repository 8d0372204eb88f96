"""The status of a primary, as frozen values: its own state, and how far each of its replicas is."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from walkit._internal.html import tag
from walkit._internal.text import aligned, counted
from walkit.metrics import PeerStatistics
from walkit.replication.core.publisher import CONTACT_MS, Publisher
from walkit.replication.core.states import StateSpan, spans_of
from walkit.replication.delta.poll_server import SessionStatus
from walkit.replication.primary.replica_acks import AckStatus
from walkit.segments.consumer_files import ClaimFact


@dataclass(frozen=True, kw_only=True, slots=True)
class FollowerStatus:
    """One connected replica as its primary sees it: the durable end here, against the acknowledged one.

    The lag is None while unknown: before the welcome, and if the replica has sent nothing for some time.
    """

    name: str
    """The label that it gives itself."""
    id: str
    """The key of its id, which is the name of its claim."""
    acked_lsn: int
    in_flight_bytes: int
    state: str
    """"catching up", "streaming" or "bootstrapping"; docs/replication.md has the table of states."""
    detail: str
    """Why its session makes no progress; "" if it answers."""
    state_s: float
    """For how many seconds it has been in this state."""
    lag_records: int | None
    lag_bytes: int | None
    """Bytes of frames, padding included."""
    lag_ms: float | None
    """For how long something has been durable here that it has not acknowledged."""
    history: tuple[StateSpan, ...] = ()
    """The states of its session, oldest first; () if it was asked for from outside."""
    held_from: int | None = None
    """The first LSN that its claim keeps; None without a claim."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PrimaryStatus:
    """The state of a primary and its replicas. `durable_lsn` is the last LSN that replicas can get now.

    `state`: "new", "serving", "closed" (the log that it was made of is closed: replicas get the rest of it, and are
    then notified), "absent" (its storage is away, and is looked for until it is back), "failed" (the log
    cannot be read, or may not be served, now), "stopped". `detail` says it in words; "" if it serves.
    """

    address: str
    state: str
    detail: str
    durable_lsn: int
    durable_position: int
    followers: tuple[FollowerStatus, ...]
    trouble: str = ""
    """The address of the peer that last sent an invalid message, or why a replica has no claim; "" for neither."""
    delta_readers: tuple[SessionStatus, ...] = ()
    """Readers that share the log's storage and poll: one entry for each session."""
    acks: AckStatus | None = None
    """The replicas that appends wait for; None without `ack_replicas`."""
    claims: tuple[ClaimFact, ...] | None = None
    """The claims on the log, without their owners; None if they were not read, as by `Primary.status`."""

    def lines(self) -> list[str]:
        """Return the status as lines of text."""
        state = f"{self.state}: {self.detail}" if self.detail else self.state
        said = [f"primary at {self.address}: {state}, durable LSN {self.durable_lsn:,}"]
        lag = ("lag: records", "bytes", "ms")
        if self.acks is not None:
            said.append(f"acknowledgement: {self.acks.text()}")
        said += _table(
            "replica",
            ("name", "id", "state", "acked LSN", *lag, "held from", ""),
            [(f.name, f.id, f.state, f.acked_lsn, *_lag(f), f.held_from, f.detail) for f in self.followers],
        )
        said += _table(
            "delta reader",
            ("id", "state", "applied LSN", *lag, "bytes kept"),
            [(r.id, r.state, r.applied_lsn, *_lag(r), r.held_bytes) for r in self.delta_readers],
        )
        if self.claims is None:
            said.append("the claims are not known")
        else:
            claims = [
                (c.name, c.state, c.first_lsn, c.lease_until, c.label or c.fault or "") for c in self.claims
            ]
            said += _table("claim", ("name", "state", "first LSN", "lease until", ""), claims)
        return [*said, f"last trouble: {self.trouble}"] if self.trouble else said

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, without the histories of states."""
        facts = asdict(self)
        for follower in facts["followers"]:
            del follower["history"]
        for claim in facts["claims"] or ():
            del claim["mark"], claim["owner"]
        return facts

    def metrics(self) -> list[tuple[dict[str, str], PeerStatistics]]:
        """Return (labels, numbers) of each replica and delta reader, for `walkit.metrics.prometheus_text`."""
        peers: list[tuple[str, str, FollowerStatus | SessionStatus, int, int]] = [
            ("replica", f.name, f, f.acked_lsn, f.in_flight_bytes) for f in self.followers
        ]
        peers += [("delta reader", "", r, r.applied_lsn, r.held_bytes) for r in self.delta_readers]
        return [
            (
                {"kind": kind, "name": name, "id": peer.id},
                PeerStatistics(
                    lsn=lsn,
                    lag_records=peer.lag_records,
                    lag_bytes=peer.lag_bytes,
                    lag_ns=None if peer.lag_ms is None else round(peer.lag_ms * 1e6),
                    held_bytes=held_bytes,
                    streaming=int(peer.state in ("streaming", "syncing")),
                ),
            )
            for kind, name, peer, lsn, held_bytes in peers
        ]

    def _repr_html_(self) -> str:
        return tag("pre", str(self))


def _lag(peer: FollowerStatus | SessionStatus) -> tuple[float | None, ...]:
    return peer.lag_records, peer.lag_bytes, peer.lag_ms


def _table(
    noun: str, headers: tuple[str, ...], rows: Sequence[tuple[str | float | None, ...]]
) -> Iterator[str]:
    """Yield how many rows there are, and the rows, their numbers aligned to the right; "?" is not known."""
    yield counted(len(rows), noun)
    if rows:
        cells = [
            [c if isinstance(c, str) else "?" if c is None else f"{c:,.0f}" for c in row] for row in rows
        ]
        right = [at for at, cell in enumerate(rows[0]) if not isinstance(cell, str)]
        yield from (f"  {line}" for line in aligned(headers, cells, right))


def follower_status(
    core: Publisher, durable: tuple[int, int], now_ms: float, held_from: int | None
) -> FollowerStatus:
    """Return the status of the replica of this session, with (LSN, position) of the durable end."""
    acked, silent_ms = core.acked, core.heard_ago_ms(now_ms)
    known = silent_ms <= CONTACT_MS
    since_ms = core.states.since_ms
    return FollowerStatus(
        name=core.name,
        id=core.key,
        acked_lsn=acked.last_lsn,
        in_flight_bytes=core.in_flight_bytes,
        state=core.states.shown,
        detail="" if known else f"it has said nothing for {silent_ms / 1000:,.0f} s",
        state_s=0.0 if since_ms is None else max(now_ms - since_ms, 0.0) / 1000,
        lag_records=max(durable[0] - acked.last_lsn, 0) if known else None,
        lag_bytes=max(durable[1] - acked.position, 0) if known else None,
        lag_ms=core.lag.ms(now_ms) if known else None,
        history=spans_of(core.states, now_ms, time.time()),
        held_from=held_from,
    )
