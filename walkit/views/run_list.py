"""The Runs that the dashboard can compare: of this page and of a folder. Only a row of each is kept in memory.

No panel in here.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from walkit._internal.arguments import refuse
from walkit._internal.html import Markup, join, red_lines, table, tag
from walkit._internal.text import counted
from walkit.errors import WalkitError
from walkit.measure import Ratio, Run, compare, load, ratio_of, settings_of
from walkit.measure.run_file import ENDING
from walkit.plots import figure_html, ratios
from walkit.plots.style import Figure
from walkit.plots.units import count_text, duration_text
from walkit.views.background_jobs import Job
from walkit.workload.measured_run import Measurement

FILES_MAX = 500
"""Most files of a folder that are read."""
METRICS = (("records/s", "records_per_s"), ("p50", "p50_us"), ("p99", "p99_us"), ("p99.9", "p99.9_us"))
RUN_HEAD = ("run", "records/s", "p50", "p99", "durability", "n", "file system", "started (UTC)", "from")
NOT_SETTINGS = (
    *(
        "name",
        "records_per_s",
        "records",
        "duration_s",
        "syncs_per_s",
        "records_per_frame",
        "write_amplification",
    ),
    *(
        "raw_writes_per_s",
        "raw_p50_us",
        "raw_block_bytes",
        "raw_ratio",
        "crash_verdict",
        "interrupted",
        "failure",
    ),
    "warnings",
)
"""Columns of `compare` that are results."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One Run, as far as the list needs it."""

    id: str
    path: Path
    name: str = ""
    summary: dict[str, Any] = field(default_factory=dict)
    started_at: str = ""
    settings: str = ""
    """Equal to that of another Run where one repeats the other."""
    origin: str = ""
    """Where it is from: this page, or a folder."""
    problem: str = ""
    """Why it holds no Run that can be read."""
    measured: Measurement | None = None
    """Its load and its number of records, if this page measured it."""
    pair: str = ""
    """Equal to that of a Run of another load that was measured right before or after it."""

    @classmethod
    def of(cls, run: Run, **more: Any) -> Entry:
        """Return the entry of a Run."""
        return cls(
            name=run.name,
            summary=run.summary(),
            started_at=run.started_at.strftime("%Y-%m-%d %H:%M:%S"),
            settings=settings_of(run),
            **more,
        )


def read_path(folder: Path, job: Job, *, origin: str, entry_id: str) -> list[Entry]:
    """Return an entry for each file of a folder that may hold a Run, by name; one Run at a time is in memory.

    A file has one, of this id. OptionsError for more than 500 files.
    """
    if not folder.is_dir():
        return [entry_at(folder, entry_id, origin)]
    names = sorted(path.name for path in folder.iterdir() if path.name.endswith(ENDING))
    if len(names) > FILES_MAX:
        refuse("path", origin, f"{len(names):,} files, and at most {FILES_MAX} are read")
    found = []
    for number, name in enumerate(names):
        job.step(number, len(names), name)
        found.append(entry_at(folder / name, f"file:{name}", origin))
    return found


def entry_at(path: Path, entry_id: str, origin: str) -> Entry:
    """Return the entry of a file; one with a problem if it holds no readable Run."""
    try:
        return Entry.of(load(path), id=entry_id, path=path, origin=origin)
    except (WalkitError, OSError) as error:
        return Entry(
            id=entry_id, path=path, name=path.name, origin=origin, problem=f"{type(error).__name__}: {error}"
        )


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two Runs side by side, with the measurements of those that repeat them."""

    runs: tuple[Run, Run]
    ratios: dict[str, Ratio]
    """By metric: the second over the first."""
    paired: bool
    differences: list[tuple[str, str, str]]
    """(setting, of the first, of the second)."""

    @property
    def number(self) -> int:
        """Measurements on the side that has fewer."""
        return min((ratio.number for ratio in self.ratios.values()), default=1)


def compared(entries: Sequence[Entry], first: Entry, second: Entry) -> Comparison:
    """Compare two Runs. WalkitError or OSError if one can no longer be read."""
    runs = (load(first.path), load(second.path))
    sides = [[e for e in entries if not e.problem and _repeats(e, one)] for one in (first, second)]
    by_pair = [{e.pair: e for e in side if e.pair} for side in sides]
    pairs = [key for key in by_pair[0] if key in by_pair[1]]
    paired = len(pairs) > 1 and first.settings != second.settings
    if paired:
        sides = [[known[key] for key in pairs] for known in by_pair]
    elif first.settings == second.settings:
        sides = [[first], [second]]  # two of the same repeats: only their difference is shown
    ratios = {}
    for name, column in METRICS:
        one, other = ([v for e in side if (v := e.summary.get(column))] for side in sides)
        if one and other and (not paired or len(one) == len(other)):
            ratios[name] = ratio_of(other, one, paired=paired)
    return Comparison(runs=runs, ratios=ratios, paired=paired, differences=differences(runs))


def _repeats(entry: Entry, one: Entry) -> bool:
    return entry.settings == one.settings and entry.origin == one.origin


def differences(runs: Iterable[Run]) -> list[tuple[str, str, str]]:
    """Return the settings that differ between two Runs, and both values."""
    frame = compare(runs)
    names = [c for c in frame.columns if c not in NOT_SETTINGS and not c.endswith("_us")]
    rows = [(name, *(_plain(value) for value in frame[name])) for name in names]
    return [(name, one, other) for name, one, other in rows if one != other]


def _plain(value: Any) -> str:
    """Return a cell as text; a table keeps whole numbers as fractions where another row has none."""
    if value is None or value != value:
        return ""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else f"{value:.9g}"
    return value if isinstance(value, str) else json.dumps(value, default=str)


def cells_of(entry: Entry, number: int) -> tuple[str, ...]:
    """Return the cells of a row; `number` says how many Runs of the list repeat it, itself included."""
    if entry.problem:
        return (entry.name, "", "", "", "", "", "", "", f"{entry.origin}: {entry.problem}")
    known = entry.summary
    return (
        entry.name,
        count_text(known["records_per_s"] or 0.0),
        _time(known["p50_us"]),
        _time(known["p99_us"]),
        str(known["durability"]),
        str(number),
        str(known["file_system"] or "unknown"),
        entry.started_at,
        entry.origin,
    )


def _time(us: float | None) -> str:
    return "" if us is None else duration_text(us / 1e6)


def banner_of(found: Comparison) -> list[str]:
    """Return the caveats of the comparison, worst first."""
    said = [f"{run.name}: {text}" for run in found.runs for text in run.warnings]
    machines = {str(run.machine) for run in found.runs}
    if len(machines) > 1:
        said.append("the two were measured on different machines or file systems")
    if found.number == 1:
        said.append("n = 1: the difference may be chance; repeat them before you believe it")
    elif not found.paired:
        said.append("the rounds were not interleaved: other load of the machine may be in the ratio")
    return list(dict.fromkeys(said))


def ratios_html(found: Comparison) -> Markup:
    """Return the ratios with their intervals as a table, and their meaning."""
    one, other = found.runs
    rows = [
        (
            name,
            f"{ratio.value:.3f}",
            "not known" if ratio.low is None else f"{ratio.low:.3f} to {ratio.high:.3f}",
            f"{ratio.number}",
            {None: "not known", True: "yes", False: "no: 1 is in the interval"}[ratio.differs],
        )
        for name, ratio in found.ratios.items()
    ]
    head = ("figure", "ratio", "interval", "n", "differs")
    way = next((ratio.way for ratio in found.ratios.values()), "")
    words = f"{other.name} over {one.name}; {way}. Above 1 is more records/s, and longer latencies."
    return join([red_lines(banner_of(found)), tag("p", words), table(rows, head, right=(1, 2, 3))])


def ratios_drawn(found: Comparison) -> Figure:
    """Return the ratios with their intervals as a figure."""
    one, other = found.runs
    way = next((ratio.way for ratio in found.ratios.values()), "")
    return ratios(
        found.ratios, title=f"{escape(other.name)} over {escape(one.name)}", subtitle=[way] if way else []
    )


def differences_html(found: Comparison) -> Markup:
    """Return the difference of the settings as a table; settings that only one Run has are folded away below it."""
    if not found.differences:
        return tag("p", "All settings are equal.")
    both = [row for row in found.differences if row[1] and row[2]]
    alone = [row for row in found.differences if not (row[1] and row[2])]
    shown = (
        [_settings_table(found, both)] if both else [tag("p", "No setting that both have recorded differs.")]
    )
    if alone:
        words = f"{counted(len(alone), 'setting')} that only one of them has recorded"
        shown.append(tag("details", tag("summary", words), _settings_table(found, alone)))
    return join(shown)


def _settings_table(found: Comparison, rows: Sequence[tuple[str, str, str]]) -> Markup:
    one, other = found.runs
    return tag(
        "div",
        table(rows, ("setting", one.name, other.name)),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label="settings",
    )


def report_page(found: Comparison, figure: Figure) -> bytes:
    """Return the comparison as a page of its own, which needs no network to be read."""
    title = f"{found.runs[0].name} and {found.runs[1].name}"
    style = (
        "body{font:15px/1.45 system-ui,sans-serif;max-width:70em;margin:2em auto;padding:0 1em}"
        "td,th{padding:2px 10px 2px 2px;text-align:left}table{border-collapse:collapse}"
    )
    body = join(
        [
            tag("h1", title),
            ratios_html(found),
            Markup(figure_html(ratios_drawn(found), cdn=False)),
            tag("h2", "Latency"),
            Markup(figure_html(figure, cdn=False)),
            tag("h2", "Difference of the settings"),
            differences_html(found),
            *(tag("div", tag("h2", run.name), Markup(run._repr_html_())) for run in found.runs),
        ]
    )
    head = f"<meta charset='utf-8'><meta name='viewport' content='width=device-width'><title>{escape(title)}</title>"
    page = f"<html lang='en'><head>{head}<style>{style}</style></head><body>{body}</body></html>"
    return f"<!doctype html>{page}".encode()


def runs_zip(found: Comparison) -> bytes:
    """Return both Runs as saved files, in one archive: `walkit.measure.load` reads each."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for letter, run in zip("ab", found.runs, strict=True):
            archive.writestr(f"{letter}.parquet", run.to_bytes())
    return target.getvalue()


def count_words(entries: Sequence[Entry]) -> str:
    """Return how many Runs there are, as a sentence."""
    bad = sum(1 for entry in entries if entry.problem)
    said = counted(len(entries) - bad, "run")
    return f"{said}; {counted(bad, 'file')} could not be read." if bad else f"{said}."
