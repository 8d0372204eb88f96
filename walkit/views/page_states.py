"""The States page: two states of a log, or of two, compared by key down to the frames that are responsible."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from walkit.errors import OptionsError
from walkit.plots import states_timeline
from walkit.views.inspector_parts import LogChooser, html_pane
from walkit.views.job_bar import JobBar
from walkit.views.jobs import Job
from walkit.views.log_outline import Outline
from walkit.views.looking import Apply, Looking
from walkit.views.lsn_slider import LsnSlider
from walkit.views.object_outline import outline_of
from walkit.views.parts import (
    Button,
    Select,
    TextInput,
    View,
    figure_pane,
    numbers_html,
    pn,
    sentence_html,
    soon,
)
from walkit.views.pick_table import PickTable
from walkit.views.state_history import KeyHistory
from walkit.views.state_lab import (
    Compared,
    DiffRow,
    Engine,
    StateSide,
    compare_sides,
    places_of,
    spark_missing,
)
from walkit.views.state_rows import (
    CHANGES,
    DIFF_HEAD,
    ENGINES,
    Places,
    compared_words,
    counts_of,
    diff_rows,
    lanes_of,
    times_html,
)
from walkit.views.workspace import LogPath, Workspace

PAGE_ROWS = 50
"""Rows of the diff on one page."""
TIMES_MAX = 8
"""Comparisons whose times are kept on the page."""


def _press(called: Callable[[], None], _: object) -> None:
    called()


ABOUT = (
    "Here two states are compared, key by key: of one log at two LSNs, or of two logs. Choose a known log, or type its "
    "path or URL; scratch is the log that the Live page writes."
)


class StatesPage(View):
    """Choose a log and two LSNs, or two logs; see which keys differ, their records, and a key's history."""

    def __init__(self, workspace: Workspace, go: Callable[[str, Mapping[str, str]], None]) -> None:
        super().__init__()
        self.session, self._root, self._go = workspace.session, workspace.root, go
        self.looking = Looking(workspace.looks, soon(self.refresh))
        self.outlines: tuple[Outline, Outline] | None = None
        self.compared: Compared | None = None
        self.times: list[Compared] = []
        self._paths: tuple[LogPath, LogPath] | None = None
        self._problem: str | None = None
        self._comparing: Job | None = None
        self._done: Compared | None = None
        self._wanted_lsns: tuple[int | None, int | None] = (None, None)
        self._at = 0
        self._build_controls(workspace)
        self._layout = self._arranged()
        if workspace.logs:
            self.open()

    def _build_controls(self, workspace: Workspace) -> None:
        self.chooser = LogChooser(workspace, self.open, soon(self.refresh))
        self.second = TextInput(label="second log, for the right side", placeholder="the same log", width=260)
        missing = spark_missing()
        self.engine = Select(
            label="engine",
            options={words: name for name, words in ENGINES.items()},
            value="arrow",
            disabled_options=[] if missing is None else ["spark"],
            width=200,
        )
        self.left = LsnSlider("left state, at LSN", self._draw)
        self.right = LsnSlider("right state, at LSN", self._draw)
        self.compare = Button(label="Compare", color="primary", width=110)
        self.change = Select(label="rows", options=CHANGES, value="", width=150)
        self.back, self.on = Button(label="Previous rows", width=130), Button(label="Next rows", width=110)
        self.history = KeyHistory(self._ask, self._inspect)
        self.bar = JobBar(self._cancel)
        self.status, self.found, self.page_words, self.times_pane = (html_pane() for _ in range(4))
        self.missing = html_pane(sentence_html(missing) if missing else "", visible=missing is not None)
        self.figure = figure_pane()
        self.table = PickTable("keys that differ", DIFF_HEAD, self._pick_key, right=(3, 4, 5, 7, 8, 9))
        self.second.param.watch(lambda _: self.open(), "enter_pressed")
        self.change.param.watch(lambda _: self._turn(-self._at), "value")
        for button, called in (
            (self.compare, self._compare),
            (self.back, lambda: self._turn(-PAGE_ROWS)),
            (self.on, lambda: self._turn(PAGE_ROWS)),
        ):
            button.on_click(partial(_press, called))

    def _arranged(self) -> pn.Column:
        wide: dict[str, Any] = {"sizing_mode": "stretch_width"}
        self.pager = pn.FlexBox(self.change, self.back, self.on, self.page_words, align_items="end")
        self.pager.visible = False
        self.body = pn.Column(
            self.figure,
            self.left,
            self.right,
            pn.FlexBox(self.engine, self.compare, align_items="end"),
            self.missing,
            self.found,
            self.pager,
            self.table,
            self.times_pane,
            self.history,
            margin=0,
            visible=False,
            **wide,
        )
        return pn.Column(
            self.chooser,
            self.second,
            self.status,
            self.bar,
            self.body,
            margin=0,
            **wide,
        )

    # -- what a person asks for

    def open(self) -> None:
        """Look at the log that is chosen, and at the second one where it is named."""
        self._problem, self._paths, self.outlines = None, None, None
        self._forget()
        try:
            left = self.chooser.resolve()
            paths = (left, self._second_or(left))
        except (OptionsError, OSError) as error:
            self._problem = f"{error}."
            self.body.visible = False
            self.refresh()
            return
        self._paths = paths

        def read(_: Job) -> Apply:
            first = outline_of(paths[0])
            outlines = (first, first if paths[1] == paths[0] else outline_of(paths[1]))
            return lambda: self._take(outlines)

        self._ask("reading the log", read)

    def _second_or(self, left: LogPath) -> LogPath:
        text = (self.second.value or "").strip()
        if not text:
            return left
        return self._root.log(text)

    def _forget(self) -> None:
        self.compared, self._done, self._at = None, None, 0
        self._show_found()
        self.history.tell([])

    def _ask(self, title: str, read: Callable[[Job], Apply]) -> None:
        self.looking.ask(title, read)
        self.refresh()

    def _take(self, outlines: tuple[Outline, Outline]) -> None:
        refused = next((o.problem for o in outlines if o.problem is not None or o.last_lsn is None), None)
        self.body.visible = refused is None
        if refused is not None:
            self._problem = refused
            return
        self.outlines = outlines
        whole = [o.last_lsn or 0 for o in outlines]
        same = outlines[0] is outlines[1]
        asked = (whole[0] // 2 if same else whole[0], whole[1])
        for slider, end, wanted, usual in zip(
            (self.left, self.right), whole, self._wanted_lsns, asked, strict=True
        ):
            value = usual if wanted is None else min(wanted, end)
            slider.param.update(end=max(end, 1), value=value)
        self._wanted_lsns = (None, None)
        self.history.tell(
            [("the log", outlines[0])] if same else [*zip(("left", "right"), outlines, strict=True)]
        )
        self._draw()

    def _sides(self) -> tuple[StateSide, StateSide] | None:
        if self._paths is None:
            return None
        left, right = self._lsns()
        return StateSide(self._paths[0], left), StateSide(self._paths[1], right)

    def _lsns(self) -> tuple[int, int]:
        return self.left.lsn, self.right.lsn

    def _compare(self) -> None:
        sides = self._sides()
        if sides is None or self._comparing is not None:
            return
        engine = cast("Engine", self.engine.value)
        self._problem, self._done = None, None

        def work(job: Job) -> None:
            self._done = compare_sides(*sides, engine, job)

        self._comparing = self.session.jobs.start("comparing the states", work)
        if self._comparing is None:
            self._problem = self.session.jobs.problem
        self.refresh()

    def _cancel(self) -> None:
        self.looking.cancel()
        if self._comparing is not None:
            self._comparing.cancel()

    def _chosen(self) -> list[DiffRow]:
        rows = () if self.compared is None else self.compared.rows
        return [row for row in rows if self.change.value in ("", row.change)]

    def _turn(self, by: int) -> None:
        """Show another page of the diff, once the places of its records are found."""
        compared, outlines = self.compared, self.outlines
        if compared is None or outlines is None:
            return
        rows = self._chosen()
        last = max(len(rows) - 1, 0) // PAGE_ROWS * PAGE_ROWS
        at = self._at = min(max(self._at + by, 0), last)
        shown = rows[at : at + PAGE_ROWS]
        lsns = [
            sorted({r.left_lsn for r in shown if r.left_lsn}),
            sorted({r.right_lsn for r in shown if r.right_lsn}),
        ]

        def read(job: Job) -> Apply:
            left, right = places_of(zip(outlines, lsns, strict=True), job)
            return lambda: self._show_page(rows, at, (left, right))

        self._ask("finding the frames", read)

    def _pick_key(self, row_id: str, _: bool) -> None:
        self.history.show_key(b"" if row_id == "empty" else bytes.fromhex(row_id))

    def _inspect(self, log: str, position: int) -> None:
        """Turn to the Inspector, at a frame."""
        if self._paths is not None:
            path = self._paths[1] if log == "right" else self._paths[0]
            shown = self._root.show(path) if log == "right" else self.chooser.text
            self._go("inspector", {"log": shown, "position": str(position)})

    # -- what is shown

    def refresh(self, shown: bool = True) -> None:
        """Show what is new."""
        self.chooser.refresh()
        self.looking.take()
        comparing = self._comparing
        if comparing is not None and comparing.ended:
            self._comparing, self._problem = None, comparing.problem
            done, self._done = self._done, None
            if done is not None:
                self._take_compared(done)
        if not shown:
            return
        words = self.looking.words or (ABOUT if self.outlines is None else self._log_words())
        self.status.object = sentence_html(words, problem=self._problem or self.looking.problem)
        self.bar.tell(self._comparing or self.looking.job)
        if self.body.visible:
            self.compare.disabled = self.session.busy

    def _log_words(self) -> str:
        left, right = self.outlines or (None, None)
        if left is None or right is None:
            return ""
        second = "" if left is right else f" and {right.location}"
        return f"The log {left.location}{second}, read only."

    def _take_compared(self, done: Compared) -> None:
        self.times = [*self.times, done][-TIMES_MAX:]
        self.times_pane.object = times_html(self.times)
        if self._paths == (done.left.path, done.right.path):
            self.compared, self._at = done, 0
            self._show_found()
            self._turn(0)

    def _draw(self) -> None:
        if self.outlines is not None and self._paths is not None:
            names = [self._root.show(path) for path in self._paths]
            sides = zip(names, self.outlines, self._lsns(), strict=True)
            self.figure.param.update(object=states_timeline(lanes_of(list(sides))), visible=True)

    def _show_found(self) -> None:
        compared = self.compared
        self.found.object = (
            ""
            if compared is None
            else f"{numbers_html(counts_of(compared))}<p>{sentence_html(compared_words(compared))}</p>"
        )
        self.pager.visible = compared is not None and bool(compared.rows)
        if compared is None or not compared.rows:
            self.table.tell([])

    def _show_page(self, rows: list[DiffRow], at: int, places: Places) -> None:
        shown = rows[at : at + PAGE_ROWS]
        self.table.tell(diff_rows(shown, places))
        self.back.disabled, self.on.disabled = at == 0, at + PAGE_ROWS >= len(rows)
        self.page_words.object = (
            f"rows {at + 1:,} to {at + len(shown):,} of {len(rows):,}" if shown else "no such row"
        )

    def state(self) -> dict[str, str]:
        """Return which logs and LSNs are chosen."""
        if self._paths is None:
            return {}
        second = (self.second.value or "").strip()
        lsns = {} if self.outlines is None else {"left": str(self.left.value), "right": str(self.right.value)}
        return {"log": self.chooser.text, **({"second": second} if second else {}), **lsns}

    def restore(self, state: Mapping[str, str]) -> None:
        """Choose the logs and LSNs that stood in the URL."""
        if "log" not in state:
            return
        left, right = (
            int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None
            for text in (state.get("left", ""), state.get("right", ""))
        )
        self._wanted_lsns = (left, right)
        self.chooser.path.value, self.second.value = state["log"], state.get("second", "")
        self.open()
