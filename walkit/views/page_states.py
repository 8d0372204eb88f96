"""The States page: two states of a log, or of two, compared by key down to the frames that are responsible."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from itertools import pairwise
from time import perf_counter
from typing import Any, Literal, cast

import param
import pyarrow as pa
import pyarrow.compute as pc
from panel.custom import JSComponent

from walkit._internal.arguments import refuse
from walkit._internal.text import counted
from walkit.errors import OptionsError, WalkitError, how_to_install
from walkit.objects.entrance import reader_at
from walkit.plots import StateLane, states_timeline
from walkit.plots.states import LEFT, RIGHT
from walkit.record import Kind
from walkit.state.diff import DiffCounts, diff
from walkit.views.background_jobs import Apply, Job, Looking
from walkit.views.base import (
    Button,
    JobBar,
    PickTable,
    Row,
    Select,
    TextInput,
    View,
    column,
    example_html,
    figure_pane,
    numbers_html,
    pn,
    sentence_html,
    soon,
)
from walkit.views.frame_pages import KeySearch, find_key, find_lsn
from walkit.views.inspector_parts import LogChooser, bytes_words, html_pane, wanted_of
from walkit.views.log_outline import Outline, outline_of
from walkit.views.workspace import LogPath, Workspace

Engine = Literal["arrow", "spark"]
ROWS_MAX = 1_000
"""Most rows of each change that are kept."""
VALUE_BYTES_MAX = 4_096
"""Most bytes of a value that are kept."""
ARROW_BYTES_MAX = 256 << 20
"""Most bytes of segments that one comparison reads into this process."""
ARROW_LSNS_MAX = 5_000_000
"""Most records that one comparison reads into this process."""


@dataclass(frozen=True, slots=True)
class StateSide:
    """One side: a log, and the last LSN that counts."""

    path: LogPath
    lsn: int


@dataclass(frozen=True, slots=True)
class DiffRow:
    """A key that differs: its value on either side, and the LSNs of the records that are responsible."""

    key: bytes
    change: str
    left_value: bytes | None
    right_value: bytes | None
    left_lsn: int | None
    right_lsn: int | None


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The result of a comparison, and its duration."""

    left: StateSide
    right: StateSide
    engine: Engine
    counts: DiffCounts
    rows: tuple[DiffRow, ...]
    """In order of change, then key; only the first ones of each change."""
    seconds: float
    session_s: float | None = None
    """How long Spark's session took to begin; None if it was there, or not needed."""


@dataclass(frozen=True, slots=True)
class RecordPlace:
    """Where a record stands now."""

    segment: int
    position: int


def spark_missing() -> str | None:
    """Return why Spark cannot be chosen, as a sentence, or None."""
    if find_spec("pyspark") is not None:
        return None
    return f"Spark cannot be chosen: pyspark is not installed ({how_to_install('spark')})."


def compare_sides(left: StateSide, right: StateSide, engine: Engine, job: Job) -> Compared:
    """Compare two states. Raises OptionsError if the logs are too large for this process, and the errors of reading."""
    return (_by_spark if engine == "spark" else _by_arrow)(left, right, job)


def refuse_large(outlines: Iterable[Outline]) -> None:
    """Raise OptionsError if states of these logs are more than this process takes into memory."""
    size = records = 0
    for outline in outlines:
        size += sum(s.end_position - s.start_position for s in outline.segments)
        records += max((outline.last_lsn or 0) - outline.first_lsn + 1, 0)
    if size > ARROW_BYTES_MAX or records > ARROW_LSNS_MAX:
        found = f"the logs hold {size >> 20:,} MiB and {records:,} records"
        most = f"this page takes at most {ARROW_BYTES_MAX >> 20:,} MiB and {ARROW_LSNS_MAX:,} records"
        refuse("engine", "arrow", f"{found}; {most}: choose Spark, or `walkit diff`")


def _by_arrow(left: StateSide, right: StateSide, job: Job) -> Compared:
    refuse_large([outline_of(path) for path in dict.fromkeys((left.path, right.path))])
    started = perf_counter()
    with (
        reader_at(left.path) as left_log,
        reader_at(right.path) as right_log,
    ):
        found = diff(
            (left_log, left.lsn), (right_log, right.lsn), lambda done, of: job.step(done, of, "LSNs")
        )
    job.check()
    return Compared(
        left=left,
        right=right,
        engine="arrow",
        counts=DiffCounts.of(found),
        rows=_first_rows(found),
        seconds=perf_counter() - started,
    )


def _first_rows(found: pa.Table) -> tuple[DiffRow, ...]:
    rows: list[DiffRow] = []
    for letter in "IDC":
        first = found.filter(pc.equal(found["change"], letter)).slice(0, ROWS_MAX)
        for name in ("left_value", "right_value"):
            cut = pc.binary_slice(first[name], 0, VALUE_BYTES_MAX)
            first = first.set_column(first.column_names.index(name), name, cut)
        rows += (_row(each) for each in first.to_pylist())
    return tuple(rows)


def _row(row: Mapping[str, Any]) -> DiffRow:
    return DiffRow(*(row[name] for name in DiffRow.__dataclass_fields__))


def _by_spark(left: StateSide, right: StateSide, job: Job) -> Compared:
    missing = spark_missing()
    if missing is not None:
        refuse("engine", "spark", missing.rstrip("."))
    from pyspark.errors import PySparkException

    from walkit.spark import diff_report, session
    from walkit.spark.session import active_session

    job.step(0, None, "starting Spark's session")
    began, is_new = perf_counter(), active_session() is None
    session()
    session_s = perf_counter() - began if is_new else None
    job.step(0, None, "Spark compares; a cancel waits for the end of its job")
    started = perf_counter()
    try:
        report = diff_report((left.path, left.lsn), (right.path, right.lsn), samples=ROWS_MAX)
    except PySparkException as error:
        raise WalkitError(spark_words(error)) from error
    job.check()
    return Compared(
        left=left,
        right=right,
        engine="spark",
        counts=DiffCounts(inserted=report.inserted, deleted=report.deleted, changed=report.changed),
        rows=tuple(_row(each) for each in report.samples),
        seconds=perf_counter() - started,
        session_s=session_s,
    )


def spark_words(error: Exception) -> str:
    """Return the text of a Spark error in one line: walkit's own if a worker raised it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    own = [line.partition(": ")[2] for line in lines if line.startswith("walkit.") and ": " in line]
    return (own or lines or [type(error).__name__])[-1 if own else 0]


def places_of(outlines: Iterable[tuple[Outline, Iterable[int]]], job: Job) -> list[dict[int, RecordPlace]]:
    """Return the places of each log's records by LSN, without those that are no longer in a frame."""
    found = []
    for outline, lsns in outlines:
        places: dict[int, RecordPlace] = {}
        for done, lsn in enumerate(lsns):
            job.step(done, None, "records")
            try:
                position = find_lsn(outline, lsn, job)
            except OptionsError:
                continue  # in a snapshot alone, or trimmed
            line = next(s for s in outline.segments if s.start_position <= position < s.end_position)
            places[lsn] = RecordPlace(line.number, position)
        found.append(places)
    return found


SLIDER_CSS = """
label { display: block; font-size: 0.9em; font-variant-numeric: tabular-nums; }
input { display: block; width: 100%; margin: 0.2em 0; box-sizing: border-box; accent-color: var(--accent); }
"""


class LsnSlider(JSComponent):
    """A whole number from 0 to `end`; calls `moved()` when a person has moved it. Used by one thread."""

    words = param.String(default="", doc="the choice")
    value = param.Integer(default=0, doc="the LSN that is chosen")
    end = param.Integer(default=1, doc="the last LSN that can be chosen")
    _esm = files("walkit.views").joinpath("lsn_slider.js").read_text(encoding="utf-8")
    _stylesheets = [SLIDER_CSS]

    def __init__(self, words: str, paint: str, moved: Callable[[], None]) -> None:
        self._moved = moved
        styles = {"--accent": paint}
        super().__init__(words=words, sizing_mode="stretch_width", styles=styles)  # type: ignore[no-untyped-call]

    @property
    def lsn(self) -> int:
        """The LSN that is chosen."""
        return int(self.value or 0)

    def choose(self, lsn: int) -> None:
        """Choose an LSN, as a person does; one beyond the end is the end."""
        self.value = min(max(lsn, 0), int(self.end or 0))
        self._moved()

    def _handle_msg(self, msg: Any) -> None:
        if isinstance(msg, dict) and type(msg.get("value")) is int:
            self.choose(msg["value"])


Request = Callable[[str, Callable[[Job], Apply]], None]


class KeyHistory(View):
    """A key's records with the LSNs that they held to. Used by one thread."""

    def __init__(self, request: Request, inspect: Callable[[str, int], None]) -> None:
        """`request` reads off this thread; `inspect(log, position)` is called with the frame that a person picks."""
        super().__init__()
        self.found: list[tuple[str, KeySearch]] = []
        self._logs: Sequence[tuple[str, Outline]] = ()
        self._request, self._inspect = request, inspect
        self.key = TextInput(label="key", placeholder="text, or hex after 0x", width=260)
        self.find = Button(label="Show its history", width=150)
        self.more = Button(label="Search on", width=110, visible=False)
        self.words = html_pane()
        self.table = PickTable("history of the key", HISTORY_HEAD, self._pick, right=(0, 4, 5, 6))
        self.key.param.watch(lambda _: self._find(), "enter_pressed")
        self.find.on_click(lambda _: self._find())
        self.more.on_click(lambda _: self._search_on())
        self._layout = column(
            pn.FlexBox(self.key, self.find, align_items="end"), self.words, self.table, self.more
        )

    def update(self, logs: Sequence[tuple[str, Outline]]) -> None:
        """Search these logs, by name, from now on; earlier results are dropped."""
        self._logs = logs
        self._take([])

    def show_key(self, key: bytes) -> None:
        """Show the history of a key."""
        self.key.value = f"0x{key.hex()}"
        self._search(key, None)

    def _find(self) -> None:
        text = (self.key.value or "").strip()
        try:
            key = wanted_of("key", text)
        except ValueError as error:
            self.words.object = sentence_html("", problem=f"{text[:80]!r} is not a key: {error}.")
            return
        if isinstance(key, bytes):
            self._search(key, None)

    def _search_on(self) -> None:
        if self.found:
            key = self.found[0][1].key
            self._search(key, {name: s.next_lsn for name, s in self.found if s.next_lsn is not None})

    def _search(self, key: bytes, starts: Mapping[str, int] | None) -> None:
        """Find a key's records in each log, or from where a search before has stopped."""
        logs = self._logs

        def read(job: Job) -> Apply:
            found = [
                (name, find_key(outline, key, (starts or {}).get(name, outline.first_lsn), job))
                for name, outline in logs
                if starts is None or name in starts
            ]
            return lambda: self._take(found)

        self._request("searching for the key", read)

    def _take(self, found: list[tuple[str, KeySearch]]) -> None:
        self.found = found
        rows = [row for name, search in found for row in history_of(name, search)]
        self.table.update(rows)
        self.words.object = sentence_html("No record has this key.") if found and not rows else ""
        self.more.visible = any(search.next_lsn is not None for _, search in found)

    def _pick(self, row_id: str, _: bool) -> None:
        for log, search in self.found:
            for hit in search.hits:
                if f"{log}/{hit.record.lsn}" == row_id:
                    self._inspect(log, hit.position)
                    return


DIFF_HEAD = (
    "key",
    "change",
    *("left value", "left LSN", "left segment", "left frame at"),
    *("right value", "right LSN", "right segment", "right frame at"),
)
HISTORY_HEAD = ("LSN", "log", "what", "value", "held to LSN", "segment", "frame at position")
CHANGES = {"all changes": "", "inserted": "I", "deleted": "D", "changed": "C"}
WORDS = {"I": "inserted", "D": "deleted", "C": "changed"}
ENGINES = {"arrow": "Arrow, in this process", "spark": "Spark"}
Places = tuple[Mapping[int, RecordPlace], Mapping[int, RecordPlace]]


def counts_of(compared: Compared) -> list[tuple[str, str, str]]:
    """Return the counts of a comparison as (name, value, meaning)."""
    counts = compared.counts
    return [
        ("Inserted", f"{counts.inserted:,}", "keys that only the right state has"),
        ("Deleted", f"{counts.deleted:,}", "keys that only the left state has"),
        ("Changed", f"{counts.changed:,}", "keys with another value in the right state"),
        (f"by {ENGINES[compared.engine]}", f"{compared.seconds:,.2f} s", "reading, replay and comparison"),
    ]


def compared_words(compared: Compared) -> str:
    """Return the compared states, and how many rows are kept."""
    left, right = compared.left, compared.right
    where = "" if left.path == right.path else " of the second log"
    said = f"From the state at LSN {left.lsn:,} to the one at LSN {right.lsn:,}{where}: "
    said += "equal." if compared.counts.equal else f"{counted(compared.counts.total, 'key')} differ."
    if compared.counts.total > len(compared.rows):
        said += f" The first {ROWS_MAX:,} of each change are kept: `walkit diff` saves all."
    return said


def diff_row(row: DiffRow, places: Places) -> Row:
    """Return the row of a key; the places are those of the left log and of the right one."""
    left, right = places
    return Row(
        id=row.key.hex() or "empty",
        cells=(
            bytes_words(row.key),
            WORDS[row.change],
            *_side_cells(row.left_value, row.left_lsn, left, live=row.change != "I"),
            *_side_cells(row.right_value, row.right_lsn, right, live=row.change != "D"),
        ),
        label=f"history of the key {bytes_words(row.key)}",
    )


def _side_cells(
    value: bytes | None, lsn: int | None, places: Mapping[int, RecordPlace], *, live: bool
) -> tuple[str, ...]:
    shown = bytes_words(value) if live else "deleted" if lsn is not None else ""
    if lsn is None:
        return (shown, "", "", "")
    place = places.get(lsn)
    if place is None:
        return (shown, f"{lsn:,}", "none", "in no frame")
    return (shown, f"{lsn:,}", f"{place.segment}", f"{place.position:,}")


def history_of(name: str, search: KeySearch) -> list[Row]:
    """Return a row for each record of a key in the log of this name."""
    rows = []
    for hit, following in pairwise((*search.hits, None)):
        assert hit is not None
        record = hit.record
        deleted = record.kind == Kind.DELETE
        held = f"{following.record.lsn - 1:,}" if following is not None else ""
        if following is None and not deleted:
            held = "its newest" if search.next_lsn is None else "not searched further"
        rows.append(
            Row(
                id=f"{name}/{record.lsn}",
                cells=(
                    f"{record.lsn:,}",
                    name,
                    "deleted" if deleted else "set",
                    "" if deleted else bytes_words(record.value),
                    held,
                    f"{hit.segment}",
                    f"{hit.position:,}",
                ),
                label=f"the frame of LSN {record.lsn:,} of {name}",
            )
        )
    return rows


def lanes_of(sides: Sequence[tuple[str, Outline, int]]) -> list[StateLane]:
    """Return the lines of a timeline for (name, log, LSN) of both sides; one line if both are the same log."""
    marks = [(side, lsn) for side, (_, _, lsn) in zip(("left", "right"), sides, strict=True)]
    if sides[0][1] is sides[1][1]:
        return [StateLane(sides[0][0], _segments(sides[0][1]), tuple(marks))]
    return [
        StateLane(name, _segments(outline), (mark,))
        for (name, outline, _), mark in zip(sides, marks, strict=True)
    ]


def _segments(outline: Outline) -> tuple[tuple[int, int, int], ...]:
    newest = outline.last_lsn or 0
    known = ((s.number, s.first_lsn, s.last_lsn or newest) for s in outline.segments if s.first_lsn)
    return tuple(
        (number, first, last) for number, first, last in known if first is not None and last >= first
    )


PAGE_ROWS = 50
"""Rows of the diff on one page."""


ABOUT = "Here two states are compared, key by key: of one log at two LSNs, or of two logs."
NOTHING_YET = example_html(
    "the segments of a log, and the state before a time and after it.",
    {"segments": (4, 3, 3), "left state": (3, -7), "right state": (9, -1)},
)


class StatesPage(View):
    """Choose a log and two LSNs, or two logs; see which keys differ, their records, and a key's history."""

    def __init__(self, workspace: Workspace, go: Callable[[str, Mapping[str, str]], None]) -> None:
        super().__init__()
        self.session, self._root, self._go = workspace.session, workspace.root, go
        self.looking = Looking(workspace.looks, soon(self.refresh))
        self.outlines: tuple[Outline, Outline] | None = None
        self.compared: Compared | None = None
        self._paths: tuple[LogPath, LogPath] | None = None
        self.comparing = Looking(self.session.jobs)
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
        self.left = LsnSlider("left state, at LSN", LEFT, self._draw)
        self.right = LsnSlider("right state, at LSN", RIGHT, self._draw)
        self.compare = Button(label="Compare", color="primary", width=110)
        self.change = Select(label="rows", options=CHANGES, value="", width=150)
        self.back, self.on = Button(label="Previous rows", width=130), Button(label="Next rows", width=110)
        self.history = KeyHistory(self._request, self._inspect)
        self.bar = JobBar(self._cancel)
        self.example = html_pane(NOTHING_YET)
        self.status, self.found, self.page_words = (html_pane() for _ in range(3))
        self.missing = html_pane(sentence_html(missing) if missing else "", visible=missing is not None)
        self.figure = figure_pane()
        self.table = PickTable("keys that differ", DIFF_HEAD, self._pick_key, right=(3, 4, 5, 7, 8, 9))
        self.second.param.watch(lambda _: self.open(), "enter_pressed")
        self.change.param.watch(lambda _: self._turn(-self._at), "value")
        self.compare.on_click(lambda _: self._compare())
        self.back.on_click(lambda _: self._turn(-PAGE_ROWS))
        self.on.on_click(lambda _: self._turn(PAGE_ROWS))

    def _arranged(self) -> pn.Column:
        self.pager = pn.FlexBox(self.change, self.back, self.on, self.page_words, align_items="end")
        self.pager.visible = False
        self.body = column(
            self.figure,
            self.left,
            self.right,
            pn.FlexBox(self.engine, self.compare, align_items="end"),
            self.missing,
            self.found,
            self.pager,
            self.table,
            self.history,
            visible=False,
        )
        return column(self.chooser, self.second, self.status, self.bar, self.example, self.body)

    # -- requests

    def open(self) -> None:
        """Open the chosen log, and the second one if it is named."""
        self.comparing.problem = self._paths = self.outlines = None
        self._forget()
        try:
            left = self.chooser.resolve()
            text = (self.second.value or "").strip()
            paths = (left, self._root.log(text) if text else left)
        except (OptionsError, OSError) as error:
            self.comparing.problem = f"{error}."
            self.body.visible = False
            self.refresh()
            return
        self._paths = paths

        def read(_: Job) -> Apply:
            first = outline_of(paths[0])
            outlines = (first, first if paths[1] == paths[0] else outline_of(paths[1]))
            return lambda: self._take(outlines)

        self._request("reading the log", read)

    def _forget(self) -> None:
        self.compared, self._at = None, 0
        self._show_found()
        self.history.update([])

    def _request(self, title: str, read: Callable[[Job], Apply]) -> None:
        self.looking.request(title, read)
        self.refresh()

    def _take(self, outlines: tuple[Outline, Outline]) -> None:
        refused = next((o.problem for o in outlines if o.problem is not None or o.last_lsn is None), None)
        self.body.visible = refused is None
        if refused is not None:
            self.comparing.problem = refused
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
        self.history.update(
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
        if sides is None or self.comparing.busy:
            return
        engine = cast("Engine", self.engine.value)

        def work(job: Job) -> Apply:
            done = compare_sides(*sides, engine, job)
            return lambda: self._take_compared(done)

        self.comparing.request("comparing the states", work)
        self.refresh()

    def _cancel(self) -> None:
        self.looking.cancel()
        self.comparing.cancel()

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

        self._request("finding the frames", read)

    def _pick_key(self, row_id: str, _: bool) -> None:
        self.history.show_key(b"" if row_id == "empty" else bytes.fromhex(row_id))

    def _inspect(self, log: str, position: int) -> None:
        """Turn to the Inspector, at a frame."""
        if self._paths is not None:
            path = self._paths[1] if log == "right" else self._paths[0]
            shown = self._root.show(path) if log == "right" else self.chooser.text
            self._go("inspector", {"log": shown, "position": str(position)})

    # -- views

    def refresh(self, shown: bool = True) -> None:
        """Show new data."""
        self.chooser.refresh()
        self.looking.take()
        self.comparing.take()
        if not shown:
            return
        words = self.looking.words or (ABOUT if self.outlines is None else self._log_words())
        self.status.object = sentence_html(words, problem=self.comparing.problem or self.looking.problem)
        self.example.visible = self.outlines is None and not self.looking.words
        self.bar.update(self.comparing.job or self.looking.job)
        if self.body.visible:
            self.compare.disabled = self.session.busy

    def _log_words(self) -> str:
        left, right = self.outlines or (None, None)
        if left is None or right is None:
            return ""
        second = "" if left is right else f" and {right.location}"
        return f"The log {left.location}{second}, read only."

    def _take_compared(self, done: Compared) -> None:
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
            self.table.update([])

    def _show_page(self, rows: list[DiffRow], at: int, places: Places) -> None:
        shown = rows[at : at + PAGE_ROWS]
        self.table.update([diff_row(row, places) for row in shown])
        self.back.disabled, self.on.disabled = at == 0, at + PAGE_ROWS >= len(rows)
        self.page_words.object = (
            f"rows {at + 1:,} to {at + len(shown):,} of {len(rows):,}" if shown else "no such row"
        )

    def code(self) -> str:
        """Return Python for the chosen comparison."""
        first = self.chooser.text or "orders"
        second = (self.second.value or "").strip() or first
        left, right = self._lsns()
        return f"import walkit\n\nwalkit.diff(({first!r}, {left}), ({second!r}, {right}))"

    def state(self) -> dict[str, str]:
        """Return which logs and LSNs are chosen."""
        if self._paths is None:
            return {}
        second = (self.second.value or "").strip()
        lsns = {} if self.outlines is None else {"left": str(self.left.value), "right": str(self.right.value)}
        return {"log": self.chooser.text, **({"second": second} if second else {}), **lsns}

    def restore(self, state: Mapping[str, str]) -> None:
        """Choose the logs and LSNs of the URL."""
        if "log" not in state:
            return
        left, right = (
            int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None
            for text in (state.get("left", ""), state.get("right", ""))
        )
        self._wanted_lsns = (left, right)
        self.chooser.path.value, self.second.value = state["log"], state.get("second", "")
        self.open()
