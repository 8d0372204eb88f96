"""The result of the demo, and its display in a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from walkit.demo.checks import CHECKS, Check, Evidence
from walkit.demo.compacted_step import Compacted
from walkit.demo.parts import Parts
from walkit.demo.progress_printer import Step
from walkit.measure import Run
from walkit.recovery.report import RecoveryReport
from walkit.workload import OperationStream
from walkit.workload.child import ChildOutcome

if TYPE_CHECKING:
    from walkit.demo.followed_step import Followed


@dataclass(kw_only=True)
class DemoResult:
    """The result of the demo."""

    out: Path
    stream: OperationStream | None = None
    parts: Parts | None = None
    drive: Run | None = None
    """The first part of the stream."""
    killed: Run | None = None
    outcome: ChildOutcome | None = None
    recovery: RecoveryReport | None = None
    followed: Followed | None = None
    compacted: Compacted | None = None
    evidence: Evidence | None = None
    checks: list[Check] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """All checks were made, and every one held and compared something."""
        return tuple(c.name for c in self.checks) == CHECKS and all(c.held for c in self.checks)

    def _repr_html_(self) -> str:
        return f"<div>{verdict_html(self)}{place_html(self)}{checks_html(self)}</div>"


def verdict_html(result: DemoResult) -> str:
    """Return how many of the checks held."""
    held = sum(c.held for c in result.checks)
    mark, verdict = ("ok", "every check held") if result.ok else ("wrong", "NOT every check held")
    return f"<p>{held} of {len(CHECKS)} checks held: <span class='{mark}'>{verdict}</span>.</p>"


def place_html(result: DemoResult) -> str:
    """Return the logs' place, with a warning if a sync means nothing there."""
    run = result.drive or result.killed
    system = None if run is None else run.machine.file_system
    if system is None:
        return "<p>The file system of the logs is not known.</p>"
    kind, mount = escape(system.type or "?"), escape(system.mount_point or "?")
    device = f" on <code>{escape(system.device)}</code>" if system.device else ""
    where = f"<p>The logs are on <code>{kind}</code>, mounted at <code>{mount}</code>{device}.</p>"
    if system.tmpfs:
        text = f"{kind}: sync means nothing here. The checks hold or do not; the speeds say nothing."
        where += f"<p class='warning'>{text}</p>"
    return where


def checks_html(result: DemoResult) -> str:
    """Return a table of all checks, and the oracle's report of each that did not hold."""
    made = {c.name: c for c in result.checks}
    rows = []
    for name in CHECKS:
        check = made.get(name)
        held, text = (check.held, check.text) if check is not None else (False, "not made")
        mark = f"<span class='{'ok' if held else 'wrong'}'>{'held' if held else '<b>WRONG</b>'}</span>"
        rows.append((mark, escape(name), escape(text)))
    wrong = (c.oracle._repr_html_() for c in result.checks if c.oracle is not None and not c.held)
    return html_table(("", "check", "compared"), rows) + "".join(wrong)


def html_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; its cells are HTML."""
    heads = "".join(f"<th>{escape(h)}</th>" for h in head)
    lines = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{heads}</tr>{lines}</table>"
