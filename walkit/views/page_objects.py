"""The Object storage page: one load on object storage and on a disk, over three ways to batch it, and its cost."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, cast

from walkit._internal.arguments import refuse
from walkit._internal.html import Markup, table, tag
from walkit.errors import OptionsError
from walkit.measure import Run
from walkit.models.object_stores import PRICES
from walkit.plots import batching_cost, batching_table
from walkit.plots.units import bytes_text, count_text, duration_text
from walkit.storage.address import FILES, is_object_url
from walkit.views.background_jobs import Apply, Job, Looking
from walkit.views.base import (
    Button,
    Form,
    JobBar,
    Select,
    TextInput,
    column,
    example_html,
    figure_pane,
    html_pane,
    scrolled,
    sentence_html,
    tool_bar,
)
from walkit.views.workspace import Workspace
from walkit.workload.batching import Batching, batching_sweep, paced

VALUES: Mapping[Batching, tuple[int, ...]] = {
    "interval, ms": (0, 2, 10, 50, 250),
    "bytes of an object": (4_096, 16_384, 65_536, 262_144),
    "in flight": (1, 4, 16, 64),
}
RATES = {"100 records/s": 100, "1,000 records/s": 1_000, "5,000 records/s": 5_000}
SIZES = {"100 bytes": 100, "1,000 bytes": 1_000, "10,000 bytes": 10_000}
MODELS = ("s3-standard", "s3-express", "gp3")
SECONDS = 0.5
ROUNDS = range(3)
NOTHING_YET = example_html(
    "the latency of three places, from small batches to large ones.",
    {"s3-standard": (7, -3), "s3-express": (3, -7), "gp3": (1, -9)},
)
HEAD = ("place", "batching", "p50", "p99", "records/s", "requests", "bytes", "US$")
ABOUT = (
    "A log on object storage puts each frame as an object, so batching decides its latency and its bill. Here one load "
    "goes to object storage and to a disk. The models run in virtual time. The real places are a folder of objects, or "
    "the URL that you type, and this disk: new logs are written below them and removed, in the server's process."
)


class ObjectsPage(Form):
    """Choose a load and a way to batch it; see latency, throughput, requests and dollars. Used by one thread."""

    def __init__(self, workspace: Workspace, go: Callable[[str, Mapping[str, str]], None]) -> None:
        super().__init__()
        self.session = workspace.session
        self.runs: list[Run] = []
        self.comparing = Looking(self.session.jobs)
        near: dict[str, Any] = {"margin": (0, 4)}
        self.named = {
            "batching": Select(label="over", options=list(VALUES), width=160, **near),
            "rate": Select(label="load", options=RATES, value=1_000, width=140, **near),
            "bytes": Select(label="a record has", options=SIZES, value=1_000, width=120, **near),
        }
        self.url = TextInput(
            label="real object storage", placeholder="s3://BUCKET/FOLDER, or empty", width=300, **near
        )
        self.model = Button(label="Compare on the models", color="primary", width=190, **near)
        self.real = Button(label="Compare for real", width=150, **near)
        self.status, self.numbers = html_pane(), html_pane(NOTHING_YET)
        self._places: Mapping[str, str] = {name: name for name in MODELS}
        self.bar, self.figure = JobBar(self.comparing.cancel), figure_pane()
        self._layout = column(
            html_pane(tag("p", ABOUT)),
            tool_bar(*self.named.values(), self.model, self.url, self.real),
            self.status,
            self.bar,
            self.figure,
            self.numbers,
        )
        self.model.on_click(lambda _: self._compare({name: name for name in MODELS}))
        self.real.on_click(lambda _: self._compare_real())

    def _compare_real(self) -> None:
        text, folder = (self.url.value or "").strip(), self.session.folder
        try:
            if text and (text.startswith(FILES) or not is_object_url(text)):
                refuse("url", text, "s3://, gs:// or az://; empty for a folder of this session")
        except OptionsError as error:
            self.comparing.problem = f"{error}."
            self.refresh()
            return
        objects = text or f"{FILES}{folder}/objects"
        self._compare({"object storage": objects, "disk": os.path.join(folder, "disk")})

    def _compare(self, places: Mapping[str, str]) -> None:
        batching, self._places = cast("Batching", self.named["batching"].value), places
        load = paced(self.named["rate"].value, self.named["bytes"].value, SECONDS)

        def work(job: Job) -> Apply:
            runs = batching_sweep(places, batching, VALUES[batching], load, seeds=ROUNDS, step=job.step)
            return lambda: self._show(runs, batching)

        self.comparing.request("comparing", work)
        self.refresh()

    def _show(self, runs: list[Run], batching: Batching) -> None:
        self.runs = runs
        self.figure.param.update(object=batching_cost(runs, batching), visible=True)
        self.numbers.object = numbers_html(runs, batching)

    def code(self) -> str:
        """Return Python for the same comparison."""
        batching = self.named["batching"].value
        rate, size = self.named["rate"].value, self.named["bytes"].value
        return f"""from walkit import plots, workload

load = workload.paced({rate}, {size}, {SECONDS})
places = {dict(self._places)}
runs = workload.batching_sweep(places, {batching!r}, {list(VALUES[batching])}, load)
plots.batching_cost(runs, {batching!r})"""

    def refresh(self, shown: bool = True) -> None:
        """Show new data."""
        self.comparing.take()
        if shown:
            self.status.object = sentence_html("", problem=self.comparing.problem)
            self.bar.update(self.comparing.job)
            self.model.disabled = self.real.disabled = self.session.busy


def numbers_html(runs: list[Run], batching: Batching) -> Markup:
    """Return the medians of the Runs as a table, and the prices with their date and source."""
    found = (
        batching_table(runs, batching).dropna(axis=1, how="all").groupby(["place", "batching"], sort=False)
    )
    rows = [
        (
            place,
            f"{value:,}",
            duration_text(row["p50_s"]),
            duration_text(row["p99_s"]),
            count_text(row["records_per_s"]),
            count_text(row["requests"]),
            bytes_text(row["bytes"]),
            f"{row['usd']:.3g}" if "usd" in row else "",
        )
        for (place, value), row in cast("Any", found.median()).iterrows()
    ]
    prices = [
        tag("li", f"{name}: {price.date}, ", tag("a", price.source, href=price.source))
        for name, price in PRICES.items()
        if any(run.name == name for run in runs)
    ]
    said = "Medians; requests, bytes and dollars are for a million records. "
    return tag(
        "section",
        tag("p", said, "Prices, of US East:" if prices else "No price is known for these places."),
        tag("ul", *prices) if prices else "",
        scrolled("div", "medians", table(rows, HEAD, right=range(1, len(HEAD))), "medians"),
    )
