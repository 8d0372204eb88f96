"""The Recovery page: a real fault, the log opened again, and the decisions of its recovery."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from walkit._internal.html import (
    GREEN,
    GREY,
    PURPLE,
    YELLOW,
    Markup,
    Part,
    bar,
    facts,
    join,
    swatch,
    table,
    tag,
)
from walkit._internal.html import RED as DAMAGED
from walkit._internal.text import counted
from walkit.bench.recovery_sweep import RecoverySweep
from walkit.plots import frame_bytes, recoveries, recovery_over_checkpoint, recovery_over_segment_size
from walkit.plots.facts import machine_words
from walkit.plots.units import bytes_text
from walkit.recovery.decision import MEANINGS, table_rows
from walkit.recovery.report import RecoveryReport
from walkit.views.base import (
    RED,
    Button,
    Form,
    JobBar,
    ReportView,
    Select,
    View,
    column,
    example_html,
    figure_pane,
    html_pane,
    numbers_html,
    pn,
    scrolled,
    sentence_html,
)
from walkit.views.fault_lab import (
    CHECKPOINT_AGES,
    FATES,
    FAULTS,
    ROUNDS,
    SEGMENT_BYTES_MEASURED,
    CutFrame,
    FaultName,
    FaultReport,
    FrameFate,
    Outcome,
    Refusal,
)
from walkit.views.workspace import Workspace

NOTHING_YET = example_html(
    "the phases of an opening after a fault, over its time.",
    {"open": (2, -18), "scan": (-2, 8, -10), "verify": (-10, 5, -5), "ready": (-15, 5)},
)
FRAME_BYTES_DRAWN = 256

COLOURS: dict[FrameFate, str] = {
    "kept": GREEN,
    "cut": PURPLE,
    "hole": YELLOW,
    "lost": GREY,
    "damaged": DAMAGED,
}
APPLIED = "font-weight:bold;background:color-mix(in srgb, var(--accent, #0072b2) 18%, transparent)"


class RecoveryView(ReportView):
    """Shows the newest FaultReport beside the earlier ones, and the results of a sweep. Used by one thread."""

    def __init__(self) -> None:
        self.details = html_pane()
        self.strip = html_pane()
        self.decisions = html_pane()
        self.cuts = html_pane()
        self.bytes = figure_pane()
        self.salvage = html_pane()
        self.healing = html_pane()
        super().__init__(
            NOTHING_YET,
            self.details,
            self.strip,
            self.cuts,
            self.salvage,
            self.healing,
            self.bytes,
            self.decisions,
        )

    def update(self, reports: Sequence[FaultReport]) -> None:
        """Show the last report, unless it is the one that is shown already, with the phases of those before it."""
        if not reports or not self._is_new(reports[-1]):
            return
        report = reports[-1]
        self.text.object, self.details.object = verdict_html(report), details_html(report)
        opened = []
        for each in reports:
            name = f"{each.number}. {FAULTS[each.fault].label}"
            opened += [(name, each.recovery)] if each.recovery is not None else []
            if each.salvage is not None and each.salvage.recovery is not None:
                opened.append((f"{name}, salvaged", each.salvage.recovery))
            if each.mended is not None and each.mended.recovery is not None:
                opened.append((f"{name}, healed", each.mended.recovery))
        if opened:
            self._draw(recoveries(opened))
        self.strip.object = strip_html(report.outcome)
        self.cuts.object = "" if report.recovery is None else cuts_html(report.recovery)
        self.salvage.object = "" if report.salvage is None else salvage_html(report.salvage)
        self.healing.object = healing_html(report)
        self._update_bytes(report.frame)
        self.decisions.object = decisions_html(report.salvage or report.outcome)

    def _update_bytes(self, frame: CutFrame | None) -> None:
        self.bytes.visible = False
        if frame is None:
            return
        try:
            self.bytes.object = frame_bytes(
                frame.data, highlight=frame.highlight, bytes_max=FRAME_BYTES_DRAWN
            )
        except ValueError:
            return  # less than a header
        self.bytes.visible = True


class SweepView(View):
    """Shows recovery times over the checkpoint interval and over the segment size. Used by one thread."""

    def __init__(self) -> None:
        super().__init__()
        self.measured = html_pane()
        self.over_checkpoint = figure_pane()
        self.over_segments = figure_pane()
        self._sweep: RecoverySweep | None = None
        self._layout = column(self.measured, self.over_checkpoint, self.over_segments)

    def update(self, sweep: RecoverySweep | None) -> None:
        """Show the newest measurement, unless it is shown already."""
        if sweep is None or sweep is self._sweep:
            return
        self._sweep = sweep
        self.measured.object = sweep_html(sweep)
        words = machine_words(sweep.machine)
        for pane, kind, draw in (
            (self.over_checkpoint, "checkpoint", recovery_over_checkpoint),
            (self.over_segments, "segment", recovery_over_segment_size),
        ):
            found = sweep.reports.get(kind)  # type: ignore[call-overload]
            if found:
                pane.object = draw(found, subtitle=words)
            pane.visible = bool(found)


def verdict_html(report: FaultReport) -> str:
    """Return the outcome of a fault."""
    recovery, refusal = report.recovery, report.outcome.refusal
    parts = [] if refusal is None else [refusal_html("Opening is refused with", refusal, alert=True)]
    parts += [] if recovery is None else [_kept_html(report, recovery)]
    return join(parts)


def details_html(report: FaultReport) -> str:
    """Return the steps of a fault, the writer's error, the numbers of the recovery, and the promise."""
    done = tag("p", tag("b", f"{FAULTS[report.fault].label}: "), f"{report.place}. ", " ".join(report.steps))
    failed = Markup() if report.failure is None else refusal_html("The writer got", report.failure)
    recovery = report.recovery
    numbers = Markup() if recovery is None else Markup(_numbers_html(report, recovery))
    return join([done, failed, numbers, tag("p", report.promise, style="opacity:0.8")])


def _kept_html(report: FaultReport, recovery: RecoveryReport) -> Markup:
    if report.lost:
        words = f"{report.lost:,} acknowledged records are gone: this is a bug in walkit."
        return tag("p", tag("b", words, role="alert", style=f"color:{RED}"))
    beyond = recovery.last_lsn - report.acked_lsn
    more = (
        f" {counted(beyond, 'record')} more had been written without that word having come." if beyond else ""
    )
    return tag("p", tag("b", "Every record that was known to be acknowledged is there."), more)


def _numbers_html(report: FaultReport, recovery: RecoveryReport) -> str:
    return numbers_html(
        [
            (
                "acked LSN before the fault",
                f"{report.acked_lsn:,}",
                "the last that was known to be acknowledged",
            ),
            ("last LSN recovered", f"{recovery.last_lsn:,}", "the last record of the log now"),
            (
                "recovery, ms",
                f"{recovery.duration_s * 1000:,.1f}",
                "from the beginning of the opening to ready",
            ),
            (
                "frames read",
                f"{recovery.frames_scanned:,}",
                "frames after the last seal: they had to be checked",
            ),
            ("bytes read", f"{recovery.bytes_scanned:,}", "of those frames"),
            ("segments (read)", f"{recovery.segments:,} ({recovery.segments_scanned:,})", "of the log"),
        ]
    )


def refusal_html(words: str, refusal: Refusal, *, alert: bool = False) -> Markup:
    """Return a typed error with its data."""
    role = "alert" if alert else None
    return tag(
        "section",
        tag(
            "p", tag("b", f"{words} {refusal.name}: ", style=f"color:{RED}"), f"{refusal.message}.", role=role
        ),
        scrolled("div", "facts of the error", facts(refusal.facts), "facts"),
        class_="refusal",
    )


def strip_html(outcome: Outcome) -> str:
    """Return a bar of the log's bytes by their fate, and the sums below it."""
    sums = {fate: sum(r.size_bytes for r in outcome.strip if r.fate == fate) for fate in FATES}
    known = {fate: size for fate, size in sums.items() if size}
    if not known:
        return tag("p", "The log holds no byte.")
    legend = [
        tag(
            "li",
            swatch(COLOURS[fate]),
            f" {fate}: {size:,} bytes ({bytes_text(size)})",
            style="display:inline",
        )
        for fate, size in known.items()
    ]
    parts = [
        Part(r.size_bytes, COLOURS[r.fate], f"{r.fate}: {r.size_bytes:,} bytes, {r.words}")
        for r in outcome.strip
    ]
    said = ", ".join(f"{fate} {size:,} bytes" for fate, size in known.items())
    return tag(
        "section",
        tag("h2", "Kept, cut and lost"),
        bar(parts, label=f"the log by its bytes: {said}"),
        tag("ul", *(join([each, " "]) for each in legend), style="list-style:none;padding:0"),
        class_="strip",
    )


def decisions_html(outcome: Outcome) -> str:
    """Return the decision table of recovery with the rows marked that applied, and the facts they matched."""
    applied: dict[str, list[str]] = {}
    for row, segment in outcome.applied:
        applied.setdefault(row, []).append(segment)
    said = [tag("p", outcome.aside)] if not applied else []
    if outcome.recovery is not None:
        for d in outcome.recovery.decisions:
            held = ", ".join(MEANINGS[name] for name, holds in d.facts.items() if holds) or "none"
            words = f" {d.decision}, which means: {d.meaning}. Facts that held: {held}."
            said.append(tag("p", tag("b", f"Row {d.row}"), " for ", tag("code", d.segment), ":", words))
    names = list(MEANINGS)
    columns = [
        tag("th", title, title=MEANINGS.get(title.replace(" ", "_")), scope="col", style="text-align:left")
        for title in (
            "row",
            "applied to",
            *(name.replace("_", " ") for name in names),
            "decision",
            "which means",
        )
    ]
    lines = [
        tag(
            "tr",
            tag("th", f"▶ {row['row']}" if row["row"] in applied else row["row"], scope="row"),
            tag("td", ", ".join(applied.get(row["row"], ()))),
            *(tag("td", row[name]) for name in names),
            tag("td", row["decision"]),
            tag("td", row["meaning"], style="min-width:28em"),
            aria_current="true" if row["row"] in applied else None,
            style=APPLIED if row["row"] in applied else None,
        )
        for row in table_rows()
    ]
    shown = tag("table", tag("tr", *columns), *lines, style="font-size:0.85em")
    policy = f"The decision table (walkit.recovery_table()), with policy {outcome.policy}; ▶ marks rows that applied."
    box = scrolled("div", "decision table", shown, "decisions")
    return tag("section", tag("h2", "Decisions"), *said, tag("p", policy), box)


def cuts_html(recovery: RecoveryReport) -> str:
    """Return the cuts and their reasons, or that nothing was cut."""
    if not recovery.cuts:
        return tag("p", "Nothing was cut: the log ended with a whole frame.")
    rows = (
        (
            f"{cut.position:,}",
            f"{cut.bytes:,}",
            f"{cut.first_lsn:,}",
            tag("div", cut.reason, style="min-width:11em"),  # beside names that do not break
            tag("code", cut.segment),
            tag("code", cut.kept_as or "nothing: all zero"),
        )
        for cut in recovery.cuts
    )
    shown = table(
        rows, ("cut at position", "bytes", "LSN from", "why", "segment", "kept as"), right=(0, 1, 2)
    )
    words = (
        "Nothing promised these bytes: no later frame, no seal, and not the durable slot. They were "
        "acknowledged to no writer, and do not belong to the log."
    )
    return scrolled("div", "cuts", shown, "cuts") + tag("p", words)


def salvage_html(outcome: Outcome) -> str:
    """Return the losses of opening a copy with policy "salvage"."""
    recovery = outcome.recovery
    if recovery is None:
        return ""
    given = [
        (f"{g.first_lsn:,}", f"{g.last_lsn:,}", f"{g.end_position - g.start_position:,}", g.reason, g.segment)
        for g in recovery.lost
    ]
    lsns = sum(g.lsns for g in recovery.lost)
    words = (
        f"A copy was opened with policy salvage. It gave up {counted(lsns, 'LSN')} in "
        f"{counted(len(recovery.lost), 'range')} and kept all else up to LSN {recovery.last_lsn:,}; the refused log "
        "is as it was."
    )
    shown = table(given, ("LSN from", "to", "bytes", "why", "segment"), right=(0, 1, 2))
    return tag(
        "section",
        tag("h2", "Salvage"),
        tag("p", words),
        scrolled("div", "records given up", shown, "given-up"),
        Markup(strip_html(outcome)),
    )


def healing_html(report: FaultReport) -> str:
    """Return the frames that a copy took from a peer, and its opening after that."""
    healing, outcome = report.healing, report.mended
    if healing is None or outcome is None:
        return ""
    taken = [
        (
            s.segment,
            ", ".join(f"{start:,} to {end:,}" for start, end in s.ranges),
            f"{s.bytes_fetched:,}",
            s.reason or (f"healed; the damaged file is {s.kept_as}" if s.kept_as else "healed"),
        )
        for s in healing.segments
    ]
    fetched = sum(s.bytes_fetched for s in healing.segments)
    words = (
        f"A copy of the refused log took {counted(fetched, 'byte')} of frames from a peer: a copy of the log that was "
        "made before the damage, and is served to it by gRPC. Each frame fits the manifest's seals by chain, "
        "checksum, LSN and position."
    )
    last = (
        ""
        if outcome.recovery is None
        else f" It opens with all records up to LSN {outcome.recovery.last_lsn:,}."
    )
    shown = table(taken, ("segment", "positions", "bytes taken", "outcome"), right=(2,))
    return tag(
        "section",
        tag("h2", "Healed from a peer"),
        tag("p", words + last),
        scrolled("div", "frames from a peer", shown, "healed"),
        Markup(strip_html(outcome)),
    )


def sweep_html(sweep: RecoverySweep) -> str:
    """Return the measurement and its place; in red if records were missing."""
    red = []
    if not sweep.whole:
        words = "Not everything was there again after an opening: this is a bug in walkit. "
        red.append(tag("b", words, role="alert", style=f"color:{RED}"))
    said = (
        f"Measured here just now: a child process puts {sweep.operations:,} records and is killed, for each bar; then "
        f"in {counted(sweep.rounds, 'round')}, bar by bar in turns, a fresh copy of its log is opened with a warm "
        f"cache: a Store, over the age of its checkpoint, and a log, over the size of its segments."
    )
    return tag("p", *red, said)


SWEEP_WORDS = (
    f"Two sweeps, over {len(CHECKPOINT_AGES)} checkpoint intervals and {len(SEGMENT_BYTES_MEASURED)} segment sizes: "
    f"medians of {ROUNDS} rounds in turns. It takes about half a minute on a quiet machine, and rarely more than two "
    "minutes on a busy one; it can be cancelled."
)


class RecoveryPage(Form):
    """Pick a fault, do it, see the recovery of the log; measure recovery times."""

    def __init__(self, workspace: Workspace, go: Callable[[str, Mapping[str, str]], None]) -> None:
        super().__init__()
        self.session = workspace.session
        self.recovery = RecoveryView()
        self.sweep = SweepView()
        labels = {kind.label: name for name, kind in FAULTS.items()}
        self.fault = Select(label="fault", options=labels, value="sigkill", width=260)
        self.named = {"fault": self.fault}
        self.do = Button(label="Break and recover", color="danger", width=160)
        self.salvage = Button(label="Open a copy with policy salvage", width=260, visible=False)
        self.heal = Button(label="Heal a copy from a peer", width=200, visible=False)
        self.new_log = Button(label="New log", width=100)
        self.measure = Button(label="Measure recovery times", width=190)
        self.bar = JobBar(self.session.jobs.cancel)
        self.about, self.status = html_pane(), html_pane()
        self._layout = column(
            pn.FlexBox(self.fault, self.do, self.salvage, self.heal, self.new_log, align_items="end"),
            self.about,
            self.bar,
            self.status,
            self.recovery,
            pn.pane.HTML(tag("h2", "Recovery times") + tag("p", SWEEP_WORDS), sizing_mode="stretch_width"),
            self.measure,
            self.sweep,
        )
        self.fault.param.watch(lambda _: self._describe(), "value")
        self.do.on_click(self._do)
        self.salvage.on_click(lambda _: self.request(self.session.recovery.salvage))
        self.heal.on_click(lambda _: self.request(self.session.recovery.heal))
        self.new_log.on_click(lambda _: self.request(self.session.new_log))
        self.measure.on_click(lambda _: self.request(self.session.recovery.measure))
        self._describe()

    def _describe(self) -> None:
        """Describe the chosen fault, unless its report is shown."""
        chosen, newest = cast("FaultName", self.fault.value), self.session.recovery.newest
        self.about.object = tag("p", FAULTS[chosen].words)
        self.about.visible = newest is None or newest.fault != chosen

    def _do(self, _: Any) -> None:
        self.request(lambda: self.session.recovery.do(cast("FaultName", self.fault.value)))

    def refresh(self, shown: bool = True) -> None:
        """Show new data."""
        if not shown:
            return
        session = self.session
        self.bar.update(session.jobs.current)
        self.status.object = sentence_html("", problem=session.jobs.problem)
        self._describe()
        self.recovery.update(session.recovery.reports)
        self.sweep.update(session.recovery.sweep)
        newest, busy = session.recovery.newest, session.busy
        refused = newest if session.recovery.has_refused_log else None
        self.salvage.visible = refused is not None and refused.salvage is None
        self.heal.visible = refused is not None and refused.healing is None
        for widget in (self.do, self.salvage, self.heal, self.measure):
            widget.disabled = busy
        self.new_log.disabled = busy or session.writing

    def code(self) -> str:
        """Return Python that leaves half a frame at the end of a log, and opens it again."""
        return """import walkit
from walkit.workload.inject_damage import leave_half_a_frame

leave_half_a_frame("orders")
with walkit.open("orders") as log:
    figure = walkit.plots.recovery_timeline(log.recovery)"""
