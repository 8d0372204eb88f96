"""The outcome of a fault for a log: its writer's error, the next opening, and the bytes.

No panel in here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from walkit._internal.html import shown
from walkit._internal.text import lsn_range
from walkit.errors import WalkitError
from walkit.recovery.decision import DECISION_TABLE, Decision
from walkit.recovery.report import RecoveryReport
from walkit.recovery.scan_report import ScanReport, Verdict

if TYPE_CHECKING:  # gRPC, which is not needed here
    from walkit.replication import HealReport

FaultName = Literal["sigkill", "half-frame", "bit", "missing", "power", "full", "sync"]
Fate = Literal["kept", "cut", "hole", "lost", "damaged"]
FATES: tuple[Fate, ...] = ("kept", "cut", "hole", "lost", "damaged")

FRAME_BYTES_SHOWN = 1024
"""Most bytes of a cut or damaged frame that a report holds."""


@dataclass(frozen=True, kw_only=True)
class FaultKind:
    """A fault that can be chosen."""

    label: str
    words: str
    """The fault, and its log, as a sentence."""
    job: str
    """The title of its job."""


FAULTS: dict[FaultName, FaultKind] = {
    "sigkill": FaultKind(
        label="SIGKILL",
        words="The writers of the scratch log, a child process, are killed; if none run, some are started "
        "first. The scratch log is opened again.",
        job="killing the writers and recovering",
    ),
    "half-frame": FaultKind(
        label="half a frame",
        words="The writers of the scratch log are killed, and half a frame is written after its end before it is "
        "opened again, as a power cut leaves it: a killed process rarely does, because the kernel finishes the write "
        "under way.",
        job="killing the writers, leaving half a frame and recovering",
    ),
    "bit": FaultKind(
        label="flipped bit",
        words="A child process fills a log of its own and is killed; one bit of an acknowledged frame is changed in "
        "the file, and the log is opened.",
        job="flipping a bit and recovering",
    ),
    "missing": FaultKind(
        label="missing segment",
        words="A child process fills a log of its own and is killed; the file of its oldest segment is removed, and "
        "the log is opened.",
        job="removing a segment and recovering",
    ),
    "power": FaultKind(
        label="power cut (modelled storage)",
        words="A log on modelled storage, in memory, which separates written bytes from synced ones. The power "
        "goes during a write: chance decides for each of its sectors whether it is on the medium.",
        job="cutting the power of modelled storage and recovering",
    ),
    "full": FaultKind(
        label="full disk",
        words="A log of its own on this disk, below a layer that refuses new space with ENOSPC from some moment on. "
        "The writer appends until it fails; a copy of the files of that moment is opened.",
        job="filling the disk and recovering",
    ),
    "sync": FaultKind(
        label="failed sync (modelled storage)",
        words="A log on modelled storage, in memory: one synced write fails with EIO. As on ext4, its pages look clean "
        "after it and were never written. The process is killed, and the log is opened.",
        job="failing a sync and recovering",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A typed error with its data, as texts."""

    name: str
    message: str
    facts: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, error: WalkitError) -> Refusal:
        """Take an error apart; unknown facts are left out."""
        data = {name: value for name, value in vars(error).items() if value is not None}
        return cls(
            name=type(error).__name__,
            message=str(error),
            facts=tuple((name, shown(value)) for name, value in data.items()),
        )


@dataclass(frozen=True, kw_only=True)
class ByteRange:
    """A range of bytes of a log, and its fate."""

    fate: Fate
    size_bytes: int
    words: str


@dataclass(frozen=True, kw_only=True)
class CutFrame:
    """The beginning of the frame that was cut off or is damaged."""

    data: bytes
    """At most FRAME_BYTES_SHOWN."""
    words: str
    highlight: tuple[int, ...] = ()
    """Offsets of bytes that were changed."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One opening: its outcome, or why it refused."""

    policy: str
    recovery: RecoveryReport | None = None
    refusal: Refusal | None = None
    strip: tuple[ByteRange, ...] = ()
    applied: tuple[tuple[str, str], ...] = ()
    """Rows of the decision table that applied, each with its segment."""
    aside: str = ""
    """A sentence for the case that no row applied."""


@dataclass(frozen=True, kw_only=True)
class FaultReport:
    """A fault of a log, and its outcome."""

    fault: FaultName
    number: int
    """Of the session's faults, from 1."""
    place: str
    """Which log it was, and where."""
    steps: tuple[str, ...]
    """The steps of the fault, as sentences."""
    acked_lsn: int
    """Last LSN that was known to be acknowledged before the fault."""
    promise: str
    """The promise for this fault, as a sentence."""
    outcome: Outcome
    failure: Refusal | None = None
    """The error that the writer got."""
    frame: CutFrame | None = None
    salvage: Outcome | None = None
    """Of a copy that was opened with policy "salvage"."""
    healing: HealReport | None = None
    """The healing of a copy from a peer."""
    mended: Outcome | None = None
    """Of opening that copy, with every frame verified."""

    @property
    def recovery(self) -> RecoveryReport | None:
        """The recovery after the fault; None if opening was refused."""
        return self.outcome.recovery

    @property
    def lost(self) -> int:
        """Acknowledged records that are gone without a word: 0 unless walkit has a bug."""
        return 0 if self.recovery is None else max(self.acked_lsn - self.recovery.last_lsn, 0)

    def salvaged(self, outcome: Outcome) -> FaultReport:
        """Return the report with the salvage of a copy."""
        return replace(self, salvage=outcome)

    def healed(self, healing: HealReport, outcome: Outcome) -> FaultReport:
        """Return the report with the healing of a copy."""
        return replace(self, healing=healing, mended=outcome)


def recovered(recovery: RecoveryReport, first_position: int) -> Outcome:
    """Return the outcome of an opening of a log whose first segment begins at `first_position`."""
    return Outcome(
        policy=recovery.policy,
        recovery=recovery,
        strip=tuple(_strip_of(recovery, first_position)),
        applied=tuple((d.row, d.segment) for d in recovery.decisions),
        aside="Nothing had to be decided: every segment was sealed, and the manifest vouches for sealed ones.",
    )


def refused(error: WalkitError, policy: str, found: ScanReport) -> Outcome:
    """Return the outcome of a refused opening; `found` is the scan of the same files."""
    segment = getattr(error, "segment", None)
    unsealed = {s.name for s in found.segments if s.state != "sealed"}
    row = next(r.label for r in DECISION_TABLE if r.decision is Decision.REFUSE)
    return Outcome(
        policy=policy,
        refusal=Refusal.of(error),
        strip=tuple(_strip_found(found)),
        applied=((row, segment),) if segment in unsealed else (),
        aside=f"The table does not apply: {segment} is sealed, and its end is in the manifest. A sealed segment "
        "that is missing or not intact is corruption.",
    )


def _strip_of(recovery: RecoveryReport, first_position: int) -> Iterable[ByteRange]:
    gaps: list[tuple[int, int, Fate, str]] = [
        (g.start_position, g.end_position, "lost", f"{lsn_range(g.first_lsn, g.last_lsn)}: {g.reason}")
        for g in recovery.lost
    ]
    gaps += [
        (
            h.start_position,
            h.end_position,
            "hole",
            f"{lsn_range(h.first_lsn, h.last_lsn)}, never acknowledged",
        )
        for h in recovery.holes
    ]
    at = first_position
    for start, end, fate, words in sorted(gaps):
        if start > at:
            yield _kept(at, start)
        yield ByteRange(fate=fate, size_bytes=end - start, words=words)
        at = max(at, end)
    if recovery.end_position > at:
        yield _kept(at, recovery.end_position)
    for cut in recovery.cuts:
        words = f"at position {cut.position:,} of {cut.segment}: {cut.reason}"
        yield ByteRange(fate="cut", size_bytes=cut.bytes, words=words)


def _kept(start: int, end: int) -> ByteRange:
    return ByteRange(fate="kept", size_bytes=end - start, words=f"positions {start:,} to {end:,}")


_FOUND: dict[Verdict, Fate] = {
    Verdict.INTACT: "kept",
    Verdict.TORN: "cut",
    Verdict.HOLE: "hole",
    Verdict.LOST: "lost",
    Verdict.CORRUPT: "damaged",
    Verdict.FOREIGN: "damaged",
    Verdict.MISSING: "damaged",
    Verdict.UNKNOWN: "damaged",
}


def _strip_found(found: ScanReport) -> Iterable[ByteRange]:
    for each in found.verdict:
        if each.verdict in _FOUND and each.size_bytes:
            said = f"positions {each.start_position:,} to {each.end_position:,}: {each.verdict.value}"
            words = f"{said}, {each.reason}" if each.reason else said
            yield ByteRange(fate=_FOUND[each.verdict], size_bytes=each.size_bytes, words=words)
