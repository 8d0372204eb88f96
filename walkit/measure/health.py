"""The abilities and problems of a machine: the report of `walkit doctor`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from walkit._internal.arguments import refuse
from walkit._internal.html import join, red_lines, table, tag
from walkit._internal.text import aligned, counted
from walkit.measure.health_checks import Finding, browser, folder, java, lab, packages, spark_starts
from walkit.storage.address import is_object_url
from walkit.storage.interface import Translated

Progress = Callable[[str], object]


@dataclass(frozen=True, kw_only=True)
class HealthReport:
    """Everything that `doctor` has found, in order."""

    findings: tuple[Finding, ...]

    @property
    def problems(self) -> tuple[Finding, ...]:
        """The problems, each with its advice."""
        return tuple(finding for finding in self.findings if finding.state == "problem")

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong; notes are nothing wrong."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"ok": self.ok, "findings": [asdict(finding) for finding in self.findings]}

    def text(self) -> str:
        """Return it for a terminal: a table for each part, and the remedies below it."""
        lines: list[str] = []
        for part, found in self._parts():
            rows = [(f.name, f.found, "" if f.state == "fine" else f.state) for f in found]
            lines += ["", part, *(f"  {line}" for line in aligned(("", "", ""), rows)[1:])]
            lines += [f"  {f.state}: {f.name}: {f.advice}" for f in found if f.advice]
        return "\n".join([*lines[1:], "", self._verdict()])

    def _verdict(self) -> str:
        return "no problem found" if self.ok else f"{counted(len(self.problems), 'problem')} found"

    def _parts(self) -> Iterator[tuple[str, list[Finding]]]:
        for part in dict.fromkeys(finding.part for finding in self.findings):
            yield part, [finding for finding in self.findings if finding.part == part]

    def _repr_html_(self) -> str:
        """Render it for a notebook, in the page's own colours; problems are in red above."""
        red = red_lines(f"{p.part}: {p.name}: {p.found}. {p.advice}" for p in self.problems)
        tables = [
            tag(
                "details", tag("summary", tag("b", part)), table([(f.name, f.found, f.advice) for f in found])
            )
            if part == "packages"
            else tag("div", tag("b", part), table([(f.name, f.found, f.advice) for f in found]))
            for part, found in self._parts()
        ]
        return tag("div", tag("div", self._verdict()), red, join(tables))


def doctor(
    folders: Iterable[str | os.PathLike[str]] | None = None,
    *,
    spark: bool = False,
    progress: Progress | None = None,
) -> HealthReport:
    """Check the installed packages, the disks of some folders, and Java, browser and JupyterLab.

    `folders`: where logs are or will be (default: the one for temporary files, and the current one). Each disk is
    measured, for some seconds in all. With `spark`, Spark is started in a separate process and ends again. `progress`
    is called with the current step. Everything is written into temporary folders, which are removed, and nothing else
    is changed. One of `folders` may be the URL of an object store: two small objects are put there and removed, which
    shows whether it honours conditional puts. OptionsError for a folder that is missing; StorageError without a
    descriptor left.
    """
    report = progress or (lambda _: None)
    with Translated("look at", "", "this installation"):
        usual = (tempfile.gettempdir(), os.getcwd())
        chosen = [os.fspath(path) for path in (usual if folders is None else folders)]
        for path in chosen:
            if not (os.path.isdir(path) or is_object_url(path)):
                refuse("folders", path, "an existing folder, or the URL of an object store")
        findings = [*packages()]
        for path in dict.fromkeys(p if is_object_url(p) else os.path.realpath(p) for p in chosen):
            report(f"measuring the disk of {path}")
            findings += folder(path)
        report("looking for Java, a browser and JupyterLab")
        findings += java()
        if spark:
            report("starting Spark, which takes some seconds")
            findings += spark_starts()
        findings += [*browser(), *lab()]
        return HealthReport(findings=tuple(findings))
