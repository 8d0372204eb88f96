"""The one runner of benchmarks: cases that take turns, run after run, and their rows as plain values.

A change of the machine meets every case: a run goes through all of them before the next begins.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

from walkit._internal.arguments import check_whole
from walkit._internal.progress import progress_bar
from walkit._internal.report import rounded
from walkit.storage.mounts import require_folder

T = TypeVar("T")
Step = Callable[[str], object]
"""Called with the name of the case before it is measured."""


@dataclass(frozen=True, slots=True)
class Case(Generic[T]):
    """One thing to measure, in a folder that is empty before and removed afterwards."""

    name: str
    measure: Callable[[str], T]


def check_counts(**counts: Sequence[int]) -> None:
    """Raise OptionsError for a number below 1, under the name of its option."""
    for option, numbers in counts.items():
        for number in numbers:
            check_whole(number, option)


@contextmanager
def work_folder(path: str | os.PathLike[str] | None) -> Iterator[str]:
    """Give a new folder below `path` (default: the folder for temporary files), which is removed."""
    require_folder(path)
    with tempfile.TemporaryDirectory(prefix="walkit-bench-", dir=path, ignore_cleanup_errors=True) as folder:
        yield folder


def in_turns(
    cases: Sequence[Case[T]], runs: int, folder: str, step: Step = lambda name: None
) -> list[list[T]]:
    """Measure each case once a run, every other run backwards; return the results of each case, run by run."""
    found: list[list[T]] = [[] for _ in cases]
    for number in range(runs):
        turn = list(zip(cases, found, strict=True))
        for case, results in turn if number % 2 == 0 else reversed(turn):
            step(case.name)
            place = os.path.join(folder, "case")
            os.mkdir(place)
            try:
                results.append(case.measure(place))
            finally:
                shutil.rmtree(place, ignore_errors=True)
    return found


@contextmanager
def stepping(bench: str, total: int, show: bool) -> Iterator[Step]:
    """Give a step that moves a progress bar."""
    with progress_bar(f"bench {bench}", total, unit="cases", show=show) as bar:
        yield lambda name: bar.update(1)


def plain_row(row: Any, digits: Mapping[str, int]) -> dict[str, Any]:
    """Return the fields of a row as plain values, and its properties in `digits`, each rounded to so many digits."""
    names = dict.fromkeys((*(field.name for field in fields(row)), *digits))
    return {name: plain_value(getattr(row, name), digits.get(name)) for name in names}


def plain_value(value: Any, digits: int | None = None) -> Any:
    """Return a value that JSON has: None for nan."""
    if isinstance(value, dict):
        return {key: plain_value(each, digits) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(each, digits) for each in value]
    if not isinstance(value, float):
        return value
    return rounded(value, digits) if digits is not None else None if value != value else value
