"""The errors that a publisher's lasting refusals become on the subscriber's side. Pure."""

from __future__ import annotations

from walkit.errors import DivergenceError, FormatVersionError, GapError, OptionsError, WalkitError
from walkit.format.manifest import EpochRecord
from walkit.replication.protocol.content import plain_text
from walkit.replication.protocol.failures import IdentityError
from walkit.replication.protocol.messages import Refusal


def lasting_error(refusal: Refusal, versions: tuple[int, int]) -> WalkitError:
    """Return the error of a refusal that trying again does not mend."""
    said = plain_text(refusal.message)
    if refusal.reason == "divergence":
        text = f"{said}. The first difference is LSN {refusal.lsn:,}; nothing was merged"
        return DivergenceError(text, first_lsn=refusal.lsn)
    if refusal.reason in ("identity", "rewound"):
        text = f"the primary refused this replica: {said}. With new_identity=True (walkit follow --new-identity) "
        return IdentityError(f"{text}it follows as another one, with the data it has", reason=refusal.reason)
    if refusal.reason == "gap":
        return GapError(refusal.lsn, refusal.other_lsn)
    if refusal.reason == "version":
        return unknown_version(refusal.version_min, refusal.version_max, versions)
    option = {"frame": "frame_bytes_max"}.get(refusal.reason, refusal.reason)
    return OptionsError(f"the primary refused this replica: {said}", option=option)


def unknown_version(low: int, high: int, versions: tuple[int, int]) -> FormatVersionError:
    """Return the error of a publisher that speaks other versions of the protocol."""
    ours = f"{versions[0]} to {versions[1]}"
    return FormatVersionError(
        "the publisher's replication protocol", found=f"{low} to {high}", supported=ours
    )


def first_difference(ours: tuple[EpochRecord, ...], theirs: tuple[EpochRecord, ...]) -> int:
    """Return the first LSN at which two lineages differ."""
    for mine, other in zip(ours, theirs, strict=False):
        if mine != other:
            return min(mine.first_lsn, other.first_lsn)
    return 1
