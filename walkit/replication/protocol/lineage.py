"""Whether a subscriber may be served: two histories are compared, and their first difference is named. Pure.

Histories are compared by lineage, chain and position, never by which number is higher: a longer log may be another
log. Where the epochs differ, the first difference is exact. Within one epoch only damage or forgery can make two logs
differ, and then it lies at the epoch's first LSN or after it.
"""

from __future__ import annotations

from dataclasses import dataclass

from walkit.format.manifest import EpochRecord, LogEnd
from walkit.replication.protocol.messages import (
    LINEAGE_EPOCHS_MAX,
    NAME_CHARS_MAX,
    PROTOCOL_MAX,
    PROTOCOL_MIN,
    Hello,
    Refusal,
    is_name,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PrimaryState:
    """The source's state, as far as one hello needs it."""

    log_id: int
    created_us: int
    ack_order: str
    lineage: tuple[EpochRecord, ...]
    durable_lsn: int
    durable_position: int
    oldest_lsn: int
    """The oldest record that can be sent."""
    oldest_position: int
    """Where its frame's segment begins."""
    there: LogEnd | None
    """The source's end at the position of the subscriber's end; None if no frame ends there."""
    visible_lsn: int
    """The last LSN that the source can see, durable or not."""
    before_newest: LogEnd | None = None
    """Where the newest frame with records begins, if the subscriber has all that is durable."""
    gone: bool = False
    """The frame at the subscriber's end was trimmed or compacted: no evidence for or against."""


def why_unservable(hello: Hello, versions: tuple[int, int] = (PROTOCOL_MIN, PROTOCOL_MAX)) -> Refusal | None:
    """Return why no source can serve a replica that sends this; None if the source decides."""
    low, high = versions
    if hello.version_max < low or hello.version_min > high:
        return Refusal(
            reason="version",
            message=f"the publisher speaks versions {low} to {high} of the protocol, "
            f"the subscriber {hello.version_min} to {hello.version_max}",
            version_min=low,
            version_max=high,
        )
    if not is_name(hello.name):
        return Refusal(
            reason="name",
            message=f"a replica's name is 1 to {NAME_CHARS_MAX} printable characters: "
            f"{hello.name[:NAME_CHARS_MAX]!r} of {len(hello.name):,} is not",
        )
    if hello.log_id == 0 and hello.end != LogEnd():
        return Refusal(reason="protocol", message="a subscriber without a log has no end either")
    return None


def why_refused(
    hello: Hello, primary: PrimaryState, versions: tuple[int, int] = (PROTOCOL_MIN, PROTOCOL_MAX)
) -> Refusal | None:
    """Return why the subscriber cannot be served; None if it can."""
    refusal = why_unservable(hello, versions)
    if refusal is not None:
        return refusal
    if len(primary.lineage) > LINEAGE_EPOCHS_MAX:
        return too_many_epochs(len(primary.lineage))
    if hello.log_id not in (0, primary.log_id):
        return _divergence(
            1, f"the replica is of log {hello.log_id:016x}, the source is log {primary.log_id:016x}"
        )
    return _compare_lineages(hello, primary) or _compare_ends(hello, primary)


def ends_before(hello: Hello, primary: PrimaryState) -> bool:
    """Return whether the source merely ends before the end in a hello: its whole history is one that the hello has."""
    ours, theirs = primary.lineage, hello.lineage
    begun_after = all(epoch.position >= primary.durable_position for epoch in theirs[len(ours) :])
    follows = hello.log_id == primary.log_id and ours == theirs[: len(ours)] and begun_after
    return follows and hello.end.position > primary.durable_position


def rewound(hello: Hello, acked: LogEnd) -> Refusal | None:
    """Return the refusal of a replica that ends below what it has acknowledged before: it was put back."""
    if hello.end.position >= acked.position:
        return None
    text = (
        f"replica {hello.name!r} has acknowledged LSN {acked.last_lsn:,} before and ends at {hello.end.last_lsn:,} "
        "now: its folder was put back to an earlier state"
    )
    return Refusal(reason="rewound", message=text, lsn=hello.end.last_lsn, other_lsn=acked.last_lsn)


def too_many_epochs(epochs: int) -> Refusal:
    """Return the refusal of a log whose lineage no message holds."""
    text = f"the source's log has {epochs:,} epochs, and {LINEAGE_EPOCHS_MAX:,} are the most that a replica takes"
    return Refusal(reason="lineage", message=text)


def _compare_lineages(hello: Hello, primary: PrimaryState) -> Refusal | None:
    ours, theirs = primary.lineage, hello.lineage
    common = 0
    while common < min(len(ours), len(theirs)) and ours[common] == theirs[common]:
        common += 1
    if len(theirs) > common:
        begun = theirs[common]
        ended = ours[common].first_lsn if len(ours) > common else primary.visible_lsn + 1
        first = min(begun.first_lsn, ended)
        return _divergence(
            first, f"the replica has an epoch {begun.number} ({begun.id:016x}) that the source does not have"
        )
    if len(ours) > common:
        following = ours[common]
        end = hello.end
        if end.position > following.position or end.last_lsn >= following.first_lsn:
            has = f"other frames from there up to LSN {end.last_lsn:,}"
            if end.last_lsn < following.first_lsn:
                has = (
                    f"frames without records after position {following.position:,}, where that epoch begins; its "
                    f"records end with LSN {end.last_lsn:,}"
                )
            return _divergence(
                following.first_lsn,
                f"the source began epoch {following.number} at LSN {following.first_lsn:,}, and the replica has {has}",
            )
    return None


def _compare_ends(hello: Hello, primary: PrimaryState) -> Refusal | None:
    end = hello.end
    if primary.gone or end.position < primary.oldest_position:
        return Refusal(
            reason="gap",
            message=f"record {end.last_lsn + 1:,} is gone from the source; its oldest is {primary.oldest_lsn:,}",
            lsn=end.last_lsn + 1,
            other_lsn=primary.oldest_lsn,
        )
    if primary.there == end:
        return None
    if end.last_lsn > primary.visible_lsn:
        return _divergence(
            primary.visible_lsn + 1,
            f"the replica has records up to LSN {end.last_lsn:,}, and the source ends at {primary.visible_lsn:,}",
        )
    if end.last_lsn == primary.visible_lsn == primary.durable_lsn and end.position > primary.durable_position:
        # Marker frames that the source has lost: named as such, they are cut off, and the ends are compared again.
        return _divergence(
            end.last_lsn + 1,
            f"the replica has frames without records up to position {end.position:,}, and the source ends at position "
            f"{primary.durable_position:,}",
        )
    epoch = next((e for e in reversed(hello.lineage) if e.position <= end.position), None)
    return _divergence(
        1 if epoch is None else epoch.first_lsn,
        f"the frame that ends at position {end.position:,} is another one: the replica has {end}, "
        f"the source {primary.there}",
    )


def _divergence(first_lsn: int, message: str) -> Refusal:
    return Refusal(reason="divergence", message=message, lsn=first_lsn)
