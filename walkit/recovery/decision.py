"""The decision table of recovery: facts about one segment in, one decision out.

For every combination of facts exactly one row matches, which a test proves (TigerBeetle's journal is the model). The
manifest vouches for sealed segments: an opening reads nothing of them but presence, size and header (row V). If all is
read, their frames were promised up to their end, so that any damage is corruption, and policy "salvage" gives it up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from walkit._internal.arrow import load
from walkit.errors import MissingExtraError

if TYPE_CHECKING:
    import pandas as pd


class Decision(Enum):
    """The action on a segment."""

    DROP = "it was made ahead and never used: remove it"
    SEAL = "all its frames are intact and nothing follows them: seal it"
    CUT = "the bytes after its intact frames were never promised: seal it there, keep the bytes in lost+found"
    CUT_WHOLE = (
        "nothing in it follows from the log, and nothing of it was promised: keep the file in lost+found"
    )
    KEEP = (
        "intact frames follow a hole, within the window: seal it after the last of them, record the hole, "
        "keep the bytes after them in lost+found"
    )
    SKIP = (
        "frames are missing or damaged: keep every intact frame in it, record the losses between them, "
        "keep the bytes after the last of an unsealed segment in lost+found"
    )
    MEND = (
        "its header is damaged and intact frames follow it: put a new header before them, "
        "keep the old one in lost+found, and continue as SKIP"
    )
    LOSE = (
        "no frame of it can be used: record its promised part as lost, keep its file, if any, in lost+found"
    )
    REFUSE = "something in it was promised and is not intact: corruption of acknowledged data"
    REFUSE_TAIL = "the policy refuses any damage, also that of a tail that was never promised"
    VOUCHED = "a seal vouches for its frames, and its size and header are as the manifest says: the rest is not read"
    REFUSE_SHORT = (
        "its file is absent or cut short, which no crash does: acknowledged frames may have been there"
    )


SEALING = frozenset({Decision.SEAL, Decision.CUT, Decision.KEEP, Decision.SKIP, Decision.MEND})
"""The decisions that keep frames of a segment, and seal it after the last of them."""


class Facts(NamedTuple):
    """The facts of one segment when it is decided on; MEANINGS explains each."""

    header_right: bool = False
    follows: bool = False
    bytes_after: bool = False
    promised_beyond: bool = False
    keeps_frames: bool = False
    absolute: bool = False
    salvage: bool = False
    cut_short: bool = False
    not_read: bool = False


MEANINGS = {
    "header_right": "its header is there, intact, and of this log",
    "follows": "it begins where the intact log ends, and no hole lies before it",
    "bytes_after": "nonzero bytes follow those of its frames that follow the log without a hole",
    "promised_beyond": "the log without holes ends in it, before its promised end",
    "keeps_frames": "holes are kept, and it has intact frames after one, within the window; "
    "with salvage: it has any intact frame after damage or a missing part",
    "absolute": "the policy is absolute",
    "salvage": "the policy is salvage",
    "cut_short": "its file is absent or shorter than the space that was reserved for it, and the log does not continue "
    "after its frames",
    "not_read": "it is sealed, and of its file only presence, size and header were read",
}
"""The meaning of each fact, in a few words."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the decision table; None matches both."""

    label: str
    facts: tuple[bool | None, ...]
    decision: Decision

    def matches(self, facts: tuple[bool, ...]) -> bool:
        """Say whether the row is for these facts."""
        return all(want is None or want == have for want, have in zip(self.facts, facts, strict=True))


DECISION_TABLE: tuple[Row, ...] = (
    #         header follows after promised keeps absolute salvage cut_short not_read
    Row("A", (None, None, None, True, None, None, False, None, False), Decision.REFUSE),
    Row("B", (False, None, False, False, None, None, None, False, False), Decision.DROP),
    Row("C", (False, None, True, False, None, False, False, False, False), Decision.CUT_WHOLE),
    Row("D", (False, None, True, False, None, True, False, False, False), Decision.REFUSE_TAIL),
    Row("E", (True, True, False, False, None, None, None, False, False), Decision.SEAL),
    Row("F", (True, True, True, False, False, False, False, False, False), Decision.CUT),
    Row("G", (True, True, True, False, None, True, False, False, False), Decision.REFUSE_TAIL),
    Row("H", (True, False, None, False, False, False, False, False, False), Decision.CUT_WHOLE),
    Row("I", (True, False, None, False, None, True, False, False, False), Decision.REFUSE_TAIL),
    Row("J", (True, True, True, False, True, False, False, False, False), Decision.KEEP),
    Row("K", (True, False, None, False, True, False, False, False, False), Decision.KEEP),
    Row("L", (False, None, False, True, None, None, True, None, False), Decision.LOSE),
    Row("M", (False, None, True, None, False, None, True, None, False), Decision.LOSE),
    Row("N", (False, None, True, None, True, None, True, None, False), Decision.MEND),
    Row("O", (True, True, False, True, None, None, True, None, False), Decision.SKIP),
    Row("P", (True, True, True, None, None, None, True, None, False), Decision.SKIP),
    Row("Q", (True, False, None, None, True, None, True, None, False), Decision.SKIP),
    Row("R", (True, False, None, None, False, None, True, None, False), Decision.LOSE),
    Row("S", (None, None, None, False, None, None, False, True, False), Decision.REFUSE_SHORT),
    Row("T", (False, None, False, False, None, None, True, True, False), Decision.LOSE),
    Row("U", (True, True, False, False, None, None, True, True, False), Decision.SKIP),
    Row("V", (None, None, None, None, None, None, None, None, True), Decision.VOUCHED),
)


def decide(facts: tuple[bool, ...]) -> Row:
    """Return the one row for these facts."""
    (row,) = [r for r in DECISION_TABLE if r.matches(facts)]
    return row


def table_rows() -> Iterator[dict[str, Any]]:
    """Yield the rows of the table as plain values: row, the facts ("yes", "no", "any"), decision, meaning."""
    labels = {True: "yes", False: "no", None: "any"}
    for row in DECISION_TABLE:
        facts = {name: labels[want] for name, want in zip(Facts._fields, row.facts, strict=True)}
        yield {"row": row.label, **facts, "decision": row.decision.name, "meaning": row.decision.value}


def recovery_table() -> pd.DataFrame:
    """Return the decision table of recovery as a DataFrame that a notebook shows whole, one line per row.

    `walkit.recovery.decision.MEANINGS` explains its columns. For every combination of facts exactly
    one row matches; "any" matches both. MissingExtraError without pandas.
    """
    try:
        table = load("walkit._internal.tables").WideTable(list(table_rows()))
    except ImportError as error:
        raise MissingExtraError("dashboard", "pandas") from error
    return cast("pd.DataFrame", table.set_index("row"))
