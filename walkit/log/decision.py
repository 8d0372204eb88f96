"""The decision table of recovery: facts about one unsealed segment in, one decision out.

For every combination of facts exactly one row matches, which a test proves (TigerBeetle's journal is the model). What
is sealed is vouched for by the manifest and not decided here: any damage there is corruption.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from walkit.errors import MissingExtraError

if TYPE_CHECKING:
    import pandas as pd


class Decision(Enum):
    """What to do with an unsealed segment."""

    DROP = "it was made ahead and never used: remove it"
    SEAL = "all its frames are intact and nothing stands behind them: seal it"
    CUT = (
        "what stands behind its intact frames was never promised: seal it there, keep the bytes in lost+found"
    )
    CUT_WHOLE = (
        "nothing in it follows from the log, and nothing of it was promised: keep the file in lost+found"
    )
    KEEP = (
        "intact frames stand behind a hole, within the window: seal it behind the last of them, record the hole, "
        "keep the bytes behind them in lost+found"
    )
    REFUSE = "something in it was promised and is not intact: corruption of acknowledged data"
    REFUSE_TAIL = "the policy refuses any damage, also that of a tail that was never promised"


class Facts(NamedTuple):
    """What is known of one unsealed segment when it is decided on; MEANINGS says what each means."""

    header_right: bool
    follows: bool
    bytes_behind: bool
    promised_beyond: bool
    keeps_frames: bool
    absolute: bool


MEANINGS = {
    "header_right": "its header is there, intact, and of this log",
    "follows": "it begins where the intact log ends, and no hole lies before it",
    "bytes_behind": "nonzero bytes stand behind those of its frames that follow without a hole",
    "promised_beyond": "the log without holes ends in it, before what was promised",
    "keeps_frames": "holes are kept, and intact frames stand in it behind one, within the window",
    "absolute": "the policy is absolute",
}
"""What each fact says, in a few words."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the decision table; None matches both."""

    label: str
    facts: tuple[bool | None, bool | None, bool | None, bool | None, bool | None, bool | None]
    decision: Decision

    def matches(self, facts: tuple[bool, ...]) -> bool:
        """Say whether the row is for these facts."""
        return all(want is None or want == have for want, have in zip(self.facts, facts, strict=True))


DECISION_TABLE: tuple[Row, ...] = (
    #         header  follows behind promised keeps absolute
    Row("A", (None, None, None, True, None, None), Decision.REFUSE),
    Row("B", (False, None, False, False, None, None), Decision.DROP),
    Row("C", (False, None, True, False, None, False), Decision.CUT_WHOLE),
    Row("D", (False, None, True, False, None, True), Decision.REFUSE_TAIL),
    Row("E", (True, True, False, False, None, None), Decision.SEAL),
    Row("F", (True, True, True, False, False, False), Decision.CUT),
    Row("G", (True, True, True, False, None, True), Decision.REFUSE_TAIL),
    Row("H", (True, False, None, False, False, False), Decision.CUT_WHOLE),
    Row("I", (True, False, None, False, None, True), Decision.REFUSE_TAIL),
    Row("J", (True, True, True, False, True, False), Decision.KEEP),
    Row("K", (True, False, None, False, True, False), Decision.KEEP),
)


def decide(facts: tuple[bool, ...]) -> Row:
    """Return the one row for these facts."""
    (row,) = [r for r in DECISION_TABLE if r.matches(facts)]
    return row


def table_rows() -> Iterator[dict[str, Any]]:
    """Yield the rows of the table as plain values: row, the facts ("yes", "no", "any"), decision, meaning."""
    words = {True: "yes", False: "no", None: "any"}
    for row in DECISION_TABLE:
        facts = {name: words[want] for name, want in zip(Facts._fields, row.facts, strict=True)}
        yield {"row": row.label, **facts, "decision": row.decision.name, "meaning": row.decision.value}


def recovery_table() -> pd.DataFrame:
    """Return the decision table of recovery as a DataFrame, one line per row; see `walkit.log.decision.MEANINGS`.

    For every combination of facts exactly one row matches; "any" matches both. MissingExtraError without pandas.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingExtraError("dashboard", "pandas") from error
    return pd.DataFrame(list(table_rows())).set_index("row")
