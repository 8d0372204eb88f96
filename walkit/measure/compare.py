"""Runs side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from walkit.errors import OptionsError
from walkit.measure.run import Plain, Run

if TYPE_CHECKING:
    import pandas as pd


def compare(runs: Run | Iterable[Run]) -> pd.DataFrame:
    """Return one row per run, in order: its summary(), its labels, and every option the runs differ in.

    Labels are columns `label.<name>`, options `option.<path>` with dots into nested ones. `raw_ratio` is
    records per raw durable write of the same run: 1 is what a bare loop of one write per record would reach.
    OptionsError for what is no Run.
    """
    import pandas as pd

    chosen = [runs] if isinstance(runs, Run) else list(runs)
    for run in chosen:
        if not isinstance(run, Run):
            raise OptionsError(
                f"runs: a list of Runs; {type(run).__name__} is none", option="runs", wanted=run
            )
    options = [_flat(run.options, "option.") for run in chosen]
    paths = list(dict.fromkeys(path for found in options for path in found))
    # A missing option differs from one that is None.
    differing = [
        path for path in paths if any(found.get(path, ...) != options[0].get(path, ...) for found in options)
    ]
    rows: list[dict[str, Any]] = []
    for run, found in zip(chosen, options, strict=True):
        row = run.summary()
        raw = row["raw_writes_per_s"]
        row["raw_ratio"] = run.records_per_s / raw if raw else None
        row["warnings"] = "; ".join(run.warnings)
        row |= _flat(run.labels, "label.") | {path: found.get(path) for path in differing}
        rows.append(row)
    return pd.DataFrame(rows)


def _flat(values: Mapping[str, Plain], prefix: str) -> dict[str, Plain]:
    flat: dict[str, Plain] = {}
    for name, value in values.items():
        if isinstance(value, dict) and value:
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat
