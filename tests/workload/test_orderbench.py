"""`walkit bench order`: both orders on real files, beside virtual time, with ratios that are taken within a round."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from walkit.bench import OrderReport, bench_order
from walkit.errors import OptionsError
from walkit.measure import load
from walkit.plots import order_cost


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> OrderReport:
    folder = tmp_path_factory.mktemp("order")
    found = bench_order(
        writers=[4],
        in_flight=2,
        policies=["one-record"],
        seconds=0.5,  # beside eight busy processes no record came in 0.2 s
        rounds=2,
        path=str(folder),
        progress=False,
    )
    assert list(folder.iterdir()) == []
    return found


def test_every_load_has_both_orders_in_every_round(report: OrderReport) -> None:
    """Two rounds of a load on the disk and on a modelled one: four Runs each, the orders take turns."""
    places = ["disk", "essd-pl1-20g", "essd-pl1-20g, virtual time"]
    assert list(report.table.device) == places
    for place in places[:2]:
        labels = [run.labels for run in report.runs if run.labels["device"] == place]
        found = [(label["round"], label["ack_order"]) for label in labels]
        assert found == [(0, "append"), (0, "completion"), (1, "completion"), (1, "append")]
    for run in report.runs:
        in_flight = run.labels["mean_in_flight"]
        assert isinstance(in_flight, float) and 0 < in_flight <= 2 and run.records > 0
        assert run.records == run.operations["put"] == run.latency["total"].count
        assert run.options["ack_order"] == run.labels["ack_order"]


def test_a_ratio_is_the_median_of_those_of_the_rounds(report: OrderReport) -> None:
    """Take the ratios of each round from its Runs: the table has their median, and the medians of both orders."""
    for row in report.table[:2].to_dict("records"):
        runs = [run for run in report.runs if run.labels["device"] == row["device"]]
        told = {(run.labels["round"], run.labels["ack_order"]): run.records_per_s for run in runs}
        ratios = [told[number, "append"] / told[number, "completion"] for number in (0, 1)]
        assert row["throughput_ratios"] == pytest.approx(ratios)
        assert row["throughput_ratio"] == pytest.approx(statistics.median(ratios))
        both = [told[0, "append"], told[1, "append"]]
        assert row["append_records_per_s"] == pytest.approx(statistics.median(both))


def test_the_report_is_a_table_a_figure_and_runs_to_open_again(report: OrderReport, tmp_path: Path) -> None:
    """Text, HTML and JSON name every place, the figure of the notebook draws it, and saved Runs are the same Runs."""
    plain = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    text, html = report.text(), report._repr_html_()
    for row in plain["rows"]:
        assert row["device"] in text and row["device"] in html
    assert len(order_cost(report.table).data) == 9
    report.save(tmp_path)
    assert load(tmp_path / "order-0000") == report.runs[0]
    assert len(list(tmp_path.iterdir())) == len(report.runs)


@pytest.mark.parametrize(
    ("option", "value"),
    [("writers", []), ("rounds", 0), ("seconds", 0.0), ("path", "/no/such/folder"), ("value_bytes", 1 << 22)],
)
def test_what_cannot_be_measured_is_refused(option: str, value: Any) -> None:
    """Bad arguments are an OptionsError that names the option."""
    given: dict[str, Any] = {option: value}
    with pytest.raises(OptionsError) as found:
        bench_order(**given, progress=False)
    assert found.value.option == option
