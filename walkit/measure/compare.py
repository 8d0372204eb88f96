"""Runs side by side."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from walkit._internal.arguments import check_kind
from walkit.errors import WalkitError
from walkit.measure.histogram import LatencyHistogram
from walkit.measure.run import Plain, Run, plain
from walkit.measure.run_file import ENDING
from walkit.measure.run_io import load
from walkit.measure.series import require_pandas

if TYPE_CHECKING:
    import pandas as pd

MEDIANS = ("records_per_s", "p50_us", "p99_us")
"""Columns of which read_runs gives the median of the repeats."""


def compare(runs: Run | Iterable[Run]) -> pd.DataFrame:
    """Return one row per run, in order: its summary(), its labels, and every option the runs differ in.

    Labels are columns `label.<name>`, options `option.<path>` with dots into nested ones. `raw_ratio` is
    records per raw durable write of the same run: a bare loop of one write per record reaches 1.
    OptionsError for an argument that is not a Run.
    """
    pandas = require_pandas()
    chosen = [runs] if isinstance(runs, Run) else list(runs)
    for run in chosen:
        check_kind(run, Run, "runs", or_none=False)
    options = [_flat(run.options, "option.") for run in chosen]
    paths = list(dict.fromkeys(path for found in options for path in found))
    # A missing option differs from one that is None.
    differing = [
        path for path in paths if any(found.get(path, ...) != options[0].get(path, ...) for found in options)
    ]
    rows = [
        _row(run) | {path: found.get(path) for path in differing}
        for run, found in zip(chosen, options, strict=True)
    ]
    table: pd.DataFrame = pandas.DataFrame(rows)
    return table


def read_runs(folder: str | os.PathLike[str]) -> pd.DataFrame:
    """Return a row for each Run saved in a folder, by file name: its row of compare(), and all its settings.

    Columns: `file` (its name in the folder), `started_at` (UTC), summary(), `raw_ratio`, `label.<name>`, every option
    as `option.<path>` and the machine as `machine.<path>`. `n` counts the runs of the folder with the same settings:
    name, durability, arrival, version of walkit, machine, options except seeds, and labels except `round` and those
    with a fraction, which are measured; `median_records_per_s`, `median_p50_us` and `median_p99_us` are over these n
    runs.

    A file that ends in .parquet and holds no Run that can be read has a row too: `problem` has the reason, and
    all else is empty. `problem` is None for a Run. One Run at a time is in memory. FileNotFoundError or
    NotADirectoryError if `folder` is not a folder; MissingExtraError without pandas or hdrhistogram.
    """
    pandas = require_pandas()
    LatencyHistogram()  # a missing package is not a problem of a file
    rows: list[dict[str, Any]] = []
    repeats: dict[str, list[dict[str, Any]]] = {}
    for name in sorted(name for name in os.listdir(folder) if name.endswith(ENDING)):
        row: dict[str, Any] = {"file": name, "problem": None}
        rows.append(row)
        try:
            run = load(os.path.join(folder, name))
        except (WalkitError, OSError) as error:
            row["problem"] = f"{type(error).__name__}: {error}"
            continue
        options, machine = _flat(run.options, "option."), _flat(_machine(run), "machine.")
        started = pandas.Timestamp(run.started_at).tz_convert("UTC").as_unit("us")
        row |= {"started_at": started} | _row(run) | options | machine
        repeats.setdefault(settings_of(run), []).append(row)
    for same in repeats.values():
        together = {
            f"median_{name}": float(pandas.to_numeric(pandas.Series([row[name] for row in same])).median())
            for name in MEDIANS
        }
        for row in same:
            row.update(together, n=len(same))
    first = ("file", "problem", "started_at", "n", *(f"median_{name}" for name in MEDIANS))
    frame: pd.DataFrame = pandas.DataFrame(rows)
    return frame.reindex(columns=[*first, *(name for name in frame.columns if name not in first)])


def settings_of(run: Run) -> str:
    """Return as one text the settings that two Runs share if one repeats the other; see read_runs."""
    options, machine = _flat(run.options, "option."), _flat(_machine(run), "machine.")
    given = {path: value for path, value in options.items() if path.rpartition(".")[2] != "seed"}
    labels = {
        name: value for name, value in run.labels.items() if name != "round" and not isinstance(value, float)
    }
    return json.dumps(
        [run.name, run.durability, run.arrival, run.walkit_version, given, labels, machine], sort_keys=True
    )


def _machine(run: Run) -> dict[str, Plain]:
    """Return the facts of a Run's machine as nested plain values."""
    machine = plain(run.machine)
    assert isinstance(machine, dict)
    return machine


def _row(run: Run) -> dict[str, Any]:
    row = run.summary()
    raw = row["raw_writes_per_s"]
    row["raw_ratio"] = run.records_per_s / raw if raw else None
    row["warnings"] = "; ".join(run.warnings)
    return row | _flat(run.labels, "label.")


def _flat(values: Mapping[str, Plain], prefix: str) -> dict[str, Plain]:
    flat: dict[str, Plain] = {}
    for name, value in values.items():
        if isinstance(value, dict) and value:
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat
