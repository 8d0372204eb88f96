"""Batching sweeps: the same load in virtual time, on object storage and in a folder, and their costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from walkit.errors import OptionsError
from walkit.models import PRICES, MeasuredLatency, delays
from walkit.models.device import OBJECT_STORES
from walkit.plots import alt_text, batching_cost, batching_table, data
from walkit.storage.object_memory import ObjectRequest
from walkit.workload import batched, batching_sweep, paced

MODELS = {name: name for name in ("s3-standard", "s3-express", "gp3")}


def test_longer_intervals_cost_less_and_take_longer() -> None:
    """Sweep intervals on three models: fewer requests and dollars, more latency, and the sums by hand."""
    runs = batching_sweep(MODELS, "interval, ms", [0, 50], paced(1_000, 500, 0.5), seeds=range(2))
    assert [(run.name, run.labels["interval, ms"], run.seed) for run in runs[:4]] == [
        ("s3-standard", 0, 0),
        ("s3-express", 0, 0),
        ("gp3", 0, 0),
        ("s3-standard", 50, 0),
    ]
    table = batching_table(runs, "interval, ms").groupby(["place", "batching"]).median()
    at: dict[Any, Any] = table.to_dict("index")
    for place in MODELS:
        brief, long = at[place, 0], at[place, 50]
        assert brief["requests"] > 2 * long["requests"] and brief["usd"] > long["usd"]
        # An interval of 50 ms costs nothing beside a PUT of 150: frames no longer wait for a free place.
        assert place == "s3-standard" or 2 * brief["p50_s"] < long["p50_s"]
    assert at["s3-standard", 0]["p50_s"] > 0.1 > 0.01 > at["s3-express", 0]["p50_s"]
    row, price = at["s3-express", 50], PRICES["s3-express"]
    sent = row["bytes"] / 1e9
    assert row["usd"] == pytest.approx(row["requests"] * 0.00113 / 1000 + sent * 0.0032 + sent * 0.11)
    assert price.usd(gets=1000, read=2e9) == pytest.approx(0.00003 + 0.0012)
    drawn = data(batching_cost(runs, "interval, ms"))
    assert set(drawn.panel) == {1, 2, 3, 4} and set(drawn.series) == set(MODELS)
    assert "n = 2" in str(batching_cost(runs, "interval, ms").layout.meta["facts"])
    assert "s3-standard: p50" in alt_text(batching_cost(runs, "interval, ms"))


def test_real_places_get_a_new_log_for_each_run(tmp_path: Path) -> None:
    """Sweep the objects in flight over files and a disk: all records are acknowledged, and nothing is left behind."""
    places = {"objects": f"objects:{tmp_path}/objects", "disk": f"{tmp_path}/disk"}
    seen: list[tuple[int, int]] = []
    load = paced(400, 200, 0.25)
    runs = batching_sweep(
        places, "in flight", [1, 8], load, seeds=[3], step=lambda done, of: seen.append((done, of))
    )
    assert [run.name for run in runs] == ["objects", "disk"] * 2 and seen == [(n, 4) for n in range(4)]
    assert all(run.records == load.operations and run.frames and run.baseline is None for run in runs)
    table = batching_table(runs, "in flight")
    assert table.usd.isna().all() and (table.requests <= 1e6).all()
    assert "$" not in alt_text(batching_cost(runs, "in flight"))
    left = [path for path in tmp_path.rglob("*") if path.is_file() and path.name[0] != "="]
    assert not left


def test_batching_is_one_of_three() -> None:
    """Ask for each way to batch and for another: options that differ in one thing, and an OptionsError."""
    assert batched("in flight", 4).in_flight == 4
    assert batched("interval, ms", 20).policy != batched("bytes of an object", 20).policy
    with pytest.raises(OptionsError, match="batching"):
        batched("colour", 1)  # type: ignore[arg-type]  # refused


def test_modelled_requests_take_their_time() -> None:
    """Ask the plan of a store for delays: within the published bounds, and the same by the same seed."""
    request = ObjectRequest(0, "get", "a")
    for name, model in OBJECT_STORES.items():
        assert isinstance(model.latency, MeasuredLatency)
        least, most = model.latency.quantiles_us
        found = [fault.delay_s for fault in map(delays(name, seed=5), [request] * 40) if fault is not None]
        assert len(found) == 40 and least / 1e6 <= min(found) and max(found) <= most / 1e6 + 0.05
