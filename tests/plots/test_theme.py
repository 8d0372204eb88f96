"""One theme: colours that people tell apart, axes in units, banners, whiskers, and rows that do not overprint."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest

import walkit
from tests.plots.test_figures import make_run, phase, report_of
from tests.plots.test_maintenance import boxes
from tests.support.logs import tiny
from walkit import plots
from walkit.measure import MachineFacts
from walkit.measure.machine import FileSystemFacts
from walkit.plots.facts import Spread, spread_words
from walkit.plots.style import COLOURS, HATCHES, phase_colour, phase_hatch
from walkit.plots.units import bytes_axis, bytes_text, count_text
from walkit.storage import MemoryStorage

# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
SEEN_BY: dict[str, Any] = {
    "everybody": np.eye(3),
    "protanopia": [[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.052]],
    "deuteranopia": [[0.3673, 0.8606, -0.228], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]],
    "tritanopia": [[1.2555, -0.0767, -0.1788], [-0.0784, 0.9308, 0.1476], [0.0047, 0.6914, 0.3039]],
}


def linear(colour: str) -> Any:
    """The colour as linear RGB."""
    parts = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


@pytest.mark.parametrize("eyes", SEEN_BY)
def test_colours_and_hatches_differ_for_all_eyes(eyes: str) -> None:
    """Of eight areas any two differ in colour, as these eyes see it, or in hatch; both pages carry each colour."""
    matrix = np.array(SEEN_BY[eyes])
    for (first, one), (second, other) in combinations(enumerate(COLOURS), 2):
        apart = np.abs(matrix @ linear(one) - matrix @ linear(other)).max()
        assert apart > 0.02 or HATCHES[first] != HATCHES[second]
    for colour in COLOURS:
        light = float(linear(colour) @ [0.2126, 0.7152, 0.0722])
        assert 1.05 / (light + 0.05) > 2 and (light + 0.05) / 0.0556 > 2
    first_six = [matrix @ linear(colour) for colour in COLOURS[:6]]
    assert min(np.linalg.norm(a - b) for a, b in combinations(first_six, 2)) > 0.05


def test_a_phase_looks_the_same_wherever_it_is_drawn() -> None:
    """The eight known phases have eight colours; a figure of some of them uses those, and others have one, too."""
    names = ("open", "scan", "verify", "apply", "snapshot", "replay", "log", "ready")
    assert (
        len({phase_colour(name) for name in names})
        == len({phase_hatch(name)["shape"] for name in names})
        == 8
    )
    drawing = plots.recovery_timeline(
        report_of(phase("scan", 0, 1), phase("ready", 1, 1), phase("tidy", 2, 1))
    )
    marker = drawing.data[0].marker
    assert list(marker.color) == [phase_colour(name) for name in ("scan", "ready", "tidy")]
    assert marker.pattern.shape[0] == phase_hatch("scan")["shape"]


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0"), (1, "1 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (64 << 20, "64 MiB"), (5 << 40, "5 TiB")],
)
def test_sizes_are_binary(size: int, text: str) -> None:
    """Bytes in the unit that suits them."""
    assert bytes_text(size) == text


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (0, 9500), (-10, 1.3e6), (3 << 30, (3 << 30) + 5000), (7, 7)]
)
def test_ticks_of_bytes_are_few_and_all_different(low: float, high: float) -> None:
    """At most eight ticks, inside the range, at multiples of a power of two, no two with one text."""
    axis = bytes_axis(low, high)
    assert len(axis["tickvals"]) <= 8
    assert all(low <= tick <= high + 1 for tick in axis["tickvals"])
    assert len(set(axis["ticktext"])) == len(axis["ticktext"])


@pytest.mark.parametrize(
    ("number", "text"), [(7, "7"), (999, "999"), (999.9, "1k"), (12_340, "12.3k"), (4e6, "4M")]
)
def test_counts_are_short(number: float, text: str) -> None:
    """Counts with k, M and G."""
    assert count_text(number) == text


def test_repeated_measurements_have_a_median_and_whiskers() -> None:
    """One, three and six values: the median of each, least and most of three, quartiles of six; the words name each."""
    assert Spread.of([3.0]) == (3, 3, 3, 1)
    assert Spread.of([5.0, 1.0, 2.0]) == (2, 1, 5, 3)
    assert Spread.of([1.0, 2, 3, 4, 5, 100])[1:3] == (2.25, 4.75)
    assert [spread_words(*n) for n in ((1, 1), (3, 3), (5, 9), (1, 9))] == [
        *("", "median and min to max, n = 3"),
        *("median and quartiles, n = 5 to 9", "median and their spread, n = 1 to 9"),
    ]


def banner(drawing: plots.Figure) -> str:
    """The banner of a figure."""
    return "; ".join(drawing.layout.meta["warnings"])


def test_warnings_are_above_the_numbers() -> None:
    """A single run, one on tmpfs and one on a model each have their banner; the subtitle says where and how much."""
    place = MachineFacts(cpu="Z80", cores=2, file_system=FileSystemFacts(type="tmpfs", tmpfs=True))
    run = make_run("a", 1, machine=place)
    drawing = plots.throughput_timeline(run)
    assert banner(drawing) == "tmpfs: sync means nothing here; n = 1: no spread is known"
    facts = drawing.layout.meta["facts"]
    assert facts[:4] == ["Z80, 2 cores", "tmpfs", "durability sync", f"1 run, {run.records:,} records"]
    assert facts[4].startswith("walkit")
    assert all(fact in drawing.layout.title.text for fact in facts)
    model = replace(make_run("b", 1), labels={"virtual_time": True})
    assert "a modelled device" in banner(plots.latency_distribution([model]))
    assert "n = 1 each" in banner(plots.latency_distribution([run, model]))


def test_each_mark_has_a_row_of_its_own_and_the_axis_spans_what_is_used() -> None:
    """A log with space made ahead and marks at one place: no two share a row, and the axis ends with the used space."""
    options = tiny(segment_bytes=1 << 20)
    with walkit.open(storage=MemoryStorage(), options=options) as log:
        log.append_many([bytes(300)] * 40)
        log.cursor("c").advance(30)
        report, inventory = walkit.scan(log.parts.storage), log.inventory()
    for drawing in (plots.segments(report), plots.maintenance(inventory)):
        for trace in drawing.data:
            if trace.type == "scatter":
                assert len(set(trace.y)) == len(trace.y)
    assert drawing.layout.xaxis.range[1] < 2 * inventory.size_bytes
    found = plots.segments(report)
    assert found.layout.xaxis.range[1] < 1.1 * report.end_position
    assert boxes(found, "found")["intact"][0] == (0, report.end_position)
