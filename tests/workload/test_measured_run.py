"""A run measured in a child process: what it leaves, and that its end can be asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest

from walkit.errors import OptionsError
from walkit.measure import load
from walkit.workload import ContinuousLoad
from walkit.workload.measured_run import Measurement, measured_run


class EnoughError(Exception):
    """The test's own reason to end a run."""


# Slow: another child. By default test_steady writes to a modelled volume.
@pytest.mark.parametrize(
    "changes",
    [{"style": "tasks", "arrivals_per_s": 5_000}, pytest.param({"device": "gp3"}, marks=pytest.mark.slow)],
)
def test_a_run_is_measured_and_saved(tmp_path: Path, changes: dict[str, Any]) -> None:
    """On this disk in an open loop, and on a modelled device: the Run of that load, saved, and no log is left."""
    wanted = Measurement(ContinuousLoad(writers=3, record_bytes=50, **changes), 500)
    saved = tmp_path / "runs" / "one.parquet"
    run = measured_run(wanted, tmp_path, saved, lambda: None)
    assert run == load(saved)
    assert (run.records, run.durability, run.name) == (500, "sync", str(wanted))
    assert run.arrival == ("open" if wanted.load.arrivals_per_s else "closed")
    assert run.labels["tasks" if wanted.load.style == "tasks" else "writers"] == 3
    assert (run.baseline is None) == bool(wanted.load.device)
    assert [p.name for p in tmp_path.iterdir()] == ["runs"]


def test_a_run_that_is_given_up_leaves_nothing(tmp_path: Path) -> None:
    """The caller's check raises: the child is gone, with its log, and no Run was saved."""
    before = psutil.Process().children(recursive=True)

    def enough() -> None:
        raise EnoughError

    with pytest.raises(EnoughError):
        measured_run(Measurement(ContinuousLoad(), 1_000_000), tmp_path, tmp_path / "one.parquet", enough)
    assert psutil.Process().children(recursive=True) == before
    assert list(tmp_path.iterdir()) == []


def test_a_number_of_records_that_cannot_be_is_refused() -> None:
    """No record at all: OptionsError, before a child is started."""
    with pytest.raises(OptionsError):
        Measurement(ContinuousLoad(), 0)
