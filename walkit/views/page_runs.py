"""The Runs page: Runs of the Live page, of this one and of a folder; two that are ticked are compared and repeated."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from walkit.errors import OptionsError
from walkit.measure import Run
from walkit.measure import load as load_run
from walkit.plots import latency_distribution, svg_of
from walkit.plots.style import Figure
from walkit.views.background_jobs import Apply, Job, Looking
from walkit.views.base import (
    FOCUS_CSS,
    Button,
    IntInput,
    JobBar,
    PagedTable,
    PickTable,
    Row,
    TextInput,
    View,
    column,
    example_html,
    figure_pane,
    html_pane,
    pn,
    sentence_html,
    soon,
    tool_bar,
)
from walkit.views.load_controls import LoadControls, code_of
from walkit.views.run_list import (
    RUN_HEAD,
    Comparison,
    Entry,
    cells_of,
    compared,
    count_words,
    differences_html,
    ratios_drawn,
    ratios_html,
    read_path,
    report_page,
    runs_zip,
)
from walkit.views.workspace import Workspace
from walkit.workload.measured_run import OPERATIONS_MAX, Measurement, measured_run
from walkit.workload.steady import ContinuousLoad

PAGE_CSS = """
h2 { font-size: 1.05em; margin: 0.6em 0 0.2em; }
table { font-size: 13px; border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { padding: 2px 14px 2px 2px; } th { color: var(--soft); text-align: left; font-weight: normal; }
.scroll { overflow: auto; }
"""


EXPORTS: tuple[tuple[str, str, Callable[[Comparison, Figure], bytes]], ...] = (
    ("Export as HTML", "runs.html", report_page),
    ("Export as Parquet (zip)", "runs.zip", lambda found, _: runs_zip(found)),
    ("Export as SVG", "latency.svg", lambda _, drawing: svg_of(drawing).encode()),
)


class ComparisonFace(View):
    """One Run's latency distribution; of two also the ratio with its interval, the differences, and files to save."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Comparison | None = None
        self.drawing: Figure | None = None
        self.figure, self.points = figure_pane(), figure_pane()
        self.ratios, self.differences = (
            pn.pane.HTML("", sizing_mode="stretch_width", stylesheets=[PAGE_CSS]) for _ in range(2)
        )
        self.files = [
            pn.widgets.FileDownload(
                callback=partial(self._made, make),
                filename=name,
                label=label,
                width=210,
                embed=False,
                stylesheets=[FOCUS_CSS],
            )
            for label, name, make in EXPORTS
        ]
        self.of_two = column(self.differences, pn.FlexBox(*self.files), visible=False)
        self._layout = column(self.ratios, self.points, self.figure, self.of_two, margin=(14, 0, 0, 0))

    def update(self, *runs: Run, found: Comparison | None = None) -> None:
        """Show a Run, or the comparison `found`; without either the face is empty."""
        self.found, runs = found, found.runs if found is not None else runs
        self.of_two.visible = self.ratios.visible = found is not None
        self.drawing = latency_distribution(runs) if runs else None
        self.figure.param.update(object=self.drawing, visible=bool(runs))
        if found is None:
            self.points.visible = False
            return
        self.points.param.update(object=ratios_drawn(found), visible=bool(found.ratios))
        self.ratios.object = f"<h2>Ratio</h2>{ratios_html(found)}"
        self.differences.object = f"<h2>Difference of the settings</h2>{differences_html(found)}"

    def _made(self, make: Callable[[Comparison, Figure], bytes]) -> io.BytesIO:
        if self.found is None or self.drawing is None:
            return io.BytesIO()
        return io.BytesIO(make(self.found, self.drawing))


NOTHING_YET = example_html(
    "the latencies of two runs, from the fastest records to the slowest.",
    {"8 threads": (2, -8), "64 threads": (-1, 5, -4)},
)
ROUNDS = 5
RUNS_MAX = 200
"""Most Runs of this page; older ones are forgotten."""
HERE = "this page"


class RunsPage(View):
    """Measure, read a folder, tick two, compare and repeat them."""

    def __init__(self, workspace: Workspace, go: Callable[[str, Mapping[str, str]], None]) -> None:
        super().__init__()
        self.session, self._root = workspace.session, workspace.root
        self.looking = Looking(workspace.looks, soon(self.refresh))
        self.measured: tuple[Entry, ...] = ()
        """Those of this page, in the order of measurement; replaced when more come."""
        self.read: tuple[Entry, ...] = ()
        """Of the folder that was read last, and those that the server was started with."""
        self.ticked: list[str] = []
        self._wanted: list[str] = []
        """Runs of a URL, to be ticked once they are read."""
        self._shown: object = None
        self._shown_entries: tuple[Entry, ...] = ()
        self.measuring = Looking(self.session.jobs)
        self._number = 0
        self._folder_text = ""
        self.controls = LoadControls()
        usual = Measurement(ContinuousLoad()).operations
        near: dict[str, Any] = {"margin": (0, 3)}
        self.operations = IntInput(
            label="records", value=usual, start=1, end=OPERATIONS_MAX, width=120, **near
        )
        self.measure = Button(label="Measure", color="primary", width=110, **near)
        self.folder = TextInput(
            label=f"folder of Runs below {workspace.root.path}",
            width=330,
            **near,
        )
        self.open = Button(label="Read folder", width=120, **near)
        self.repeat = Button(label=f"Repeat {ROUNDS} times, in turn", width=220, disabled=True, **near)
        self.status, self.words = html_pane(), html_pane(NOTHING_YET)
        self.bar = JobBar(self._cancel)
        self.table = PagedTable(
            PickTable("runs; tick two", RUN_HEAD, self._tick, right=(1, 2, 3, 5), kind="checkbox"), "runs"
        )
        self.face = ComparisonFace()
        self._layout = column(
            tool_bar(self.operations, self.measure, *self.controls.drawers.values()),
            self.controls,
            tool_bar(self.folder, self.open, self.repeat),
            self.status,
            self.bar,
            self.words,
            self.table,
            self.face,
        )
        self.measure.on_click(lambda _: self._measure())
        self.open.on_click(lambda _: self._read())
        self.folder.param.watch(lambda _: self._read(), "enter_pressed")
        self.repeat.on_click(lambda _: self._repeat())
        if workspace.runs:
            self.looking.request("reading runs", partial(self._given, workspace.runs))
        self.refresh()

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All Runs of the table: of writers of the Live page, of this page, of the folder."""
        return (*self.session.runs, *self.measured, *self.read)

    # -- requests

    def _measure(self) -> None:
        try:
            wanted = self.wanted()
        except OptionsError as error:
            self.measuring.problem = f"{error}."
            self.refresh()
            return
        self._start("measuring", wanted, 1)

    def wanted(self) -> list[Measurement]:
        """Return the chosen measurement, or one for each volume. OptionsError if invalid."""
        return [Measurement(load, self.operations.value or 0) for load in self.controls.loads]

    def _repeat(self) -> None:
        both = [entry.measured for entry in self._chosen() if entry.measured is not None]
        if len(both) == 2:
            self._start("repeating both in turn", both, ROUNDS)

    def _start(self, title: str, wanted: list[Measurement], rounds: int) -> None:
        """Measure each of them so many times, one after the other in each round."""
        if self.session.writing:
            self.measuring.problem = (
                "Writers are at work on the Live page; stop them first: they would be measured too."
            )
            self.refresh()
            return
        folder = Path(self.session.folder)

        def work(job: Job) -> Apply:
            total = rounds * len(wanted)
            for done in range(total):
                one = wanted[done % len(wanted)]
                job.step(done, total, str(one))
                self._number += 1
                number, pair = self._number, f"{id(job)}/{done // len(wanted)}" if len(wanted) > 1 else ""
                saved = folder / "runs" / f"{number:04d}.parquet"
                saved.parent.mkdir(exist_ok=True)
                run = measured_run(one, folder, saved, job.check)
                entry = Entry.of(run, id=f"here:{number}", path=saved, origin=HERE, measured=one, pair=pair)
                self.measured = (*self.measured, entry)[-RUNS_MAX:]
            return lambda: None

        self.measuring.request(title, work)
        self.refresh()

    def _cancel(self) -> None:
        self.looking.cancel()
        self.measuring.cancel()

    def _read(self) -> None:
        text = (self.folder.value or "").strip()
        self.measuring.problem = None
        try:
            path = self._root.resolve(text)
            if path.is_dir():
                self._root.check_links(path)
        except (OptionsError, OSError) as error:
            self.measuring.problem = f"{error}."
            self.refresh()
            return
        self._folder_text = text
        self.looking.request("reading runs", partial(self._from, path, text))
        self.refresh()

    def _from(self, path: Path, text: str, job: Job) -> Apply:
        """Return a function that shows the Runs of a folder, or the one of a file."""
        found = read_path(path, job, origin=text, entry_id=f"file:{path.name}")
        return lambda: self._take(found)

    def _given(self, paths: tuple[Path, ...], job: Job) -> Apply:
        found: list[Entry] = []
        for number, path in enumerate(paths):
            job.check()
            origin = self._root.show(path) if path.is_dir() else "given"
            found += read_path(path, job, origin=origin, entry_id=f"given:{number}")
        return lambda: self._take(found)

    def _take(self, found: list[Entry]) -> None:
        self.read = tuple(found)
        known = {entry.id for entry in self.entries if not entry.problem}
        self.ticked = [i for i in (self._wanted or self.ticked) if i in known][:2]
        self._wanted = []
        self._compare()

    def _tick(self, entry_id: str, on: bool) -> None:
        """Tick a Run or take its tick away; a third one takes the place of the older of two."""
        self.ticked = [each for each in self.ticked if each != entry_id]
        if on and any(e.id == entry_id and not e.problem for e in self.entries):
            self.ticked = [*self.ticked[-1:], entry_id]
        self._shown = None
        self._compare()
        self.refresh()

    def _chosen(self) -> list[Entry]:
        known = {entry.id: entry for entry in self.entries}
        return [known[entry_id] for entry_id in self.ticked if entry_id in known]

    def _compare(self) -> None:
        """Show the two that are ticked, or one: that is ticked, or the newest."""
        entries = self.entries
        chosen = self._chosen() or [entry for entry in entries if not entry.problem][-1:]
        if not chosen:
            self.face.update()
            return

        def read(_: Job) -> Apply:
            if len(chosen) == 1:
                run = load_run(chosen[0].path)
                return lambda: self.face.update(run)
            found = compared(entries, *chosen)
            return lambda: self.face.update(found=found)

        self.looking.request("reading runs" if len(chosen) == 1 else "comparing", read)

    # -- views

    def refresh(self, shown: bool = True) -> None:
        """Show new data."""
        self.looking.take()
        self.measuring.take()
        if not shown:
            return
        now = (self.entries, tuple(self.ticked))
        if now != self._shown:
            grown = now[0] != self._shown_entries
            self._shown, self._shown_entries = now, now[0]
            self._show_table()
            if grown:
                self._compare()
        problem = self.measuring.problem or self.looking.problem
        self.status.object = sentence_html(self._sentence(), problem=problem)
        self.bar.update(self.measuring.job or self.looking.job)
        self.measure.disabled = self.session.busy
        repeatable = [entry for entry in self._chosen() if entry.measured is not None]
        self.repeat.disabled = self.session.busy or len(repeatable) != 2

    def _sentence(self) -> str:
        if self.looking.words:
            return self.looking.words
        chosen = self._chosen()
        if len(chosen) == 2:
            if all(entry.measured is not None for entry in chosen):
                return "Two runs are compared; they can be repeated in turn."
            return "Two runs are compared. Only runs of this page can be repeated: how others were driven is not known."
        return (
            "Tick two runs to compare them."
            if self.entries
            else "Measure a run, write on the Live page, or read a folder of saved runs."
        )

    def _show_table(self) -> None:
        entries = self.entries
        same: dict[tuple[str, str], int] = {}
        for entry in entries:
            key = (entry.origin, entry.settings)
            same[key] = same.get(key, 0) + 1
        self.table.update(
            [
                Row(
                    id=entry.id,
                    cells=cells_of(entry, same[(entry.origin, entry.settings)]),
                    label=f"compare {entry.name}, {entry.started_at}",
                    on=entry.id in self.ticked,
                    tone="bad" if entry.problem else "",
                )
                for entry in entries
            ]
        )
        self.words.object = count_words(entries) if entries else NOTHING_YET

    def code(self) -> str:
        """Return Python that measures the chosen load."""
        try:
            wanted = self.wanted()[0]
        except OptionsError:
            return ""
        options, workload = code_of(wanted.load, wanted.operations)
        return f"""import walkit
from walkit.workload import OpenLoop, Workload, drive

with walkit.open("orders", {options}) as log:
    runs = [drive(log, {workload}) for _ in range(2)]
figure = walkit.plots.latency_distribution(runs)"""

    def state(self) -> dict[str, str]:
        """Return the folder that was read, which two are ticked, and the chosen load."""
        ticked = dict(zip("ab", self.ticked, strict=False))
        folder = {"folder": self._folder_text} if self._folder_text else {}
        return {**folder, **ticked, **self.controls.state()}

    def restore(self, state: Mapping[str, str]) -> None:
        """Set the controls, read the folder, and tick the Runs of a URL."""
        self.controls.restore(state)
        self._wanted = [state[name] for name in "ab" if name in state]
        if "folder" in state:
            self.folder.value = state["folder"]
            self._read()
        elif self._wanted and not self.looking.busy:
            self._take(list(self.read))
