"""A run measured in a child process: what it leaves, and that its end can be asked for."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from walkit.errors import OptionsError
from walkit.measure import load
from walkit.workload.measured_run import MeasuredLoad, measured_run


class EnoughError(Exception):
    """The test's own reason to end a run."""


@pytest.mark.parametrize("style", ["threads", "tasks"])
def test_a_run_is_measured_and_saved(tmp_path: Path, style: str) -> None:
    """By threads and by tasks: the Run has the driven load, equals the saved one, and the log is gone."""
    wanted = MeasuredLoad(operations=500, writers=3, style=style, record_bytes=50)  # type: ignore[arg-type]
    saved = tmp_path / "runs" / "one.parquet"
    run = measured_run(wanted, tmp_path, saved, lambda: None)
    assert run == load(saved)
    assert (run.records, run.durability, run.name) == (500, "sync", str(wanted))
    assert run.labels["tasks" if style == "tasks" else "writers"] == 3
    assert run.baseline is not None
    assert [p.name for p in tmp_path.iterdir()] == ["runs"]


def test_a_run_that_is_given_up_leaves_nothing(tmp_path: Path) -> None:
    """The caller's check raises: the child is gone, with its log, and no Run was saved."""
    before = psutil.Process().children(recursive=True)

    def enough() -> None:
        raise EnoughError

    with pytest.raises(EnoughError):
        measured_run(MeasuredLoad(operations=1_000_000), tmp_path, tmp_path / "one.parquet", enough)
    assert psutil.Process().children(recursive=True) == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "wrong", [{"operations": 0}, {"writers": None}, {"style": "forks"}, {"durability": "x"}, {"policy": "x"}]
)
def test_a_load_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    """Numbers outside their bounds and words that mean nothing: OptionsError, before a child is started."""
    with pytest.raises(OptionsError):
        MeasuredLoad(**wrong)  # type: ignore[arg-type]
