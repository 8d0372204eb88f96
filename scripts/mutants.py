#!/usr/bin/env python3
"""Measure the net of tests: draw mutants by seed, run each against the tests that import it, count those found.

    python scripts/mutants.py draw --seed 33 --count 40 > docs/evidence/mutants.json
    python scripts/mutants.py run --tests REVISION --work FOLDER
    python scripts/mutants.py table RESULTS...

A mutant is one edit: a comparison turned, a call dropped, a constant changed, a branch taken always. `run` works in
FOLDER, in a clone of the revision with an environment of its own, and resumes after a stop. It takes the mutants one by
one, and runs the default tests of the mutant's room, those with the fewest imports between them first, until one fails;
with `--far` also the tests of other rooms that import the mutant. A last run shows that all finders pass without it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if not __package__:  # run as a script
    sys.path.insert(0, str(ROOT))

from scripts.mutant_sites import GROUND, Site, draw  # noqa: E402
from tests.support.import_graph import import_graph, module_of, reached  # noqa: E402

LIST = ROOT / "docs" / "evidence" / "mutants.json"
TESTED_IN = {
    "bench": ("workload",),
    "testing": ("storage", "state"),
    "views": ("dashboards",),
    GROUND: ("_internal", "record", "main_thread", "outgoing_errors"),
}
"""Rooms whose tests are in the folder of another one."""
FILES_AT_ONCE = 6


def tree(work: Path, tests: str) -> Path:
    """Return a clone of a revision (or of another checkout) with an environment of its own."""
    origin, revision = (Path(tests), "HEAD") if Path(tests).is_dir() else (ROOT, tests)
    git = ["git", "-C", str(origin), "rev-parse", "--short=12", revision]
    name = subprocess.run(git, check=True, capture_output=True, text=True).stdout.strip()
    target = work.resolve() / f"run-{name}"
    if not target.exists():
        subprocess.run(["git", "clone", "-q", str(origin.resolve()), str(target)], check=True)
    subprocess.run(["git", "checkout", "-q", "--force", name], cwd=target, check=True)
    subprocess.run(["make", "-s", "setup"], cwd=target, check=True)
    return target


def failures(target: Path, arguments: list[str], limit_s: float | None = None) -> list[str]:
    """Run pytest in a tree, and end its leftovers; return the tests that failed, or why pytest ended without one."""
    cache = target.with_name(f"{target.name}.cache")
    failed = cache / "v" / "cache" / "lastfailed"
    failed.unlink(missing_ok=True)
    command = [
        ".venv/bin/python",
        "-m",
        "pytest",
        "-q",
        "-o",
        f"cache_dir={cache}",
        f"--basetemp={target}.tmp",
    ]
    # Without bytecode: a mutant of the same size, made in the same second, would run as the file before it.
    environment = os.environ | {"HYPOTHESIS_PROFILE": "commit", "PYTHONDONTWRITEBYTECODE": "1"}
    with (
        target.with_name(f"{target.name}.log").open("w") as log,
        subprocess.Popen(
            [*command, *arguments],
            cwd=target,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        ) as process,
    ):
        try:
            code = process.wait(limit_s)
        finally:
            for kill in (signal.SIGTERM, signal.SIGKILL):
                try:
                    os.killpg(process.pid, kill)
                    process.wait(5)
                except (ProcessLookupError, subprocess.TimeoutExpired):
                    pass
    if failed.exists():
        return [*json.loads(failed.read_text())]
    return [] if code in (0, 5) else [f"pytest ends with {code}"]


def tests_of(
    target: Path, graph: dict[str, set[str]], paths: dict[str, Path], mutant: Site, far: bool
) -> list[str]:
    """Return the files of tests for a mutant: its room's, the nearest first; then, if wanted, those of other rooms."""
    steps = reached(graph, [module_of(mutant.file)])
    own = {mutant.room, *TESTED_IN.get(mutant.room, ())}
    chosen = []
    for name, path in paths.items():
        if name.startswith("tests.") and path.name.startswith("test_"):
            away = name.split(".")[1].removeprefix("test_") not in own
            if not away or (far and name in steps):
                chosen.append((away, steps.get(name, 99), path.stat().st_size, path))
    return [str(path.relative_to(target)) for *_, path in sorted(chosen)]


def hunt(target: Path, mutant: Site, tests: list[str], cap_s: float) -> dict[str, Any]:
    """Run a mutant's tests until one fails, or the time is over; return the outcome."""
    path, began, ran = target / mutant.file, time.monotonic(), 0
    original = path.read_bytes()
    mutated = mutant.mutated(original)
    if mutated is None:
        return {"found": None, "why": "gone: its lines are no longer there"}
    try:
        path.write_bytes(mutated)
        for ran in range(0, len(tests), FILES_AT_ONCE):
            left_s = cap_s - (time.monotonic() - began)
            names = ["-x", "-o", "timeout=100", *tests[ran : ran + FILES_AT_ONCE]]
            if failed := failures(target, names, max(left_s, 1)):
                return {"found": failed[0], "seconds": round(time.monotonic() - began)}
    except subprocess.TimeoutExpired:
        why = f"in {cap_s:.0f} s none of {len(tests)} files fails, at least {ran} of which end"
        return {"found": None, "why": why, "cap": cap_s}
    finally:
        path.write_bytes(original)
    return {"found": None, "why": f"none of {len(tests)} files fails"}


def run(target: Path, mutants: list[Site], cap_s: float, far: bool, results: Path) -> None:
    """Hunt each mutant that has no result yet; then run all finders without a mutant, and discard those that fail."""
    paths = {
        module_of(str(path.relative_to(target))): path
        for room in ("walkit", "tests")
        for path in sorted((target / room).rglob("*.py"))
        if "_pb2" not in path.name
    }
    files = {str(path.relative_to(target)): path.read_text(encoding="utf-8") for path in paths.values()}
    graph = import_graph(files)
    done = read_results(results)
    for n, mutant in enumerate(mutants):
        if mutant.key not in done:
            tests = tests_of(target, graph, paths, mutant, far)
            done[mutant.key] = {"key": mutant.key} | hunt(target, mutant, tests, cap_s)
            with results.open("a") as file:
                file.write(json.dumps(done[mutant.key]) + "\n")
            print(n, done[mutant.key], flush=True)
    finders = sorted({result["found"] for result in done.values() if result["found"]})
    for failed in failures(target, finders) if finders else ():
        print("fails without a mutant:", failed, flush=True)


def read_results(path: Path) -> dict[str, dict[str, Any]]:
    """Return the last result of each mutant, by its key."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {result["key"]: result for result in map(json.loads, lines)}


def table(mutants: list[Site], results: list[dict[str, dict[str, Any]]]) -> Iterator[str]:
    """Yield the score by room and kind, one column for each run, then every mutant with the test that found it."""
    for what, values in (("room", [m.room for m in mutants]), ("kind", [m.kind for m in mutants])):
        yield f"| {what} | mutants |" + " found |" * len(results)
        yield "|---|---:|" + "---:|" * len(results)
        for value in sorted({*values}):
            keys = [m.key for m, v in zip(mutants, values, strict=True) if v == value]
            found = (sum(bool(r.get(k, {}).get("found")) for k in keys) for r in results)
            yield f"| {value} | {len(keys)} | " + " | ".join(map(str, found)) + " |"
        yield ""
    yield "| mutant | before | after | found by |\n|---|---|---|---|"
    for m in mutants:
        by = (r.get(m.key, {"found": None, "why": "not run"}) for r in results)
        said = " / ".join(f"`{r['found']}`" if r["found"] else r["why"] for r in by)
        short = [" ".join(text.split()).replace("|", "\\|") for text in (m.before, m.after)]
        yield f"| {m.file}:{m.line} | `{short[0][:60]}` | `{short[1][-60:]}` | {said} |"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["draw", "run", "table"])
    parser.add_argument("--seed", type=int, default=33)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--list", type=Path, default=LIST, help="the mutants that were drawn")
    parser.add_argument("--tests", default="HEAD", help="the revision, or the checkout, whose tests are run")
    parser.add_argument(
        "--work", type=Path, default=Path("build/mutants"), help="a folder to work in, and for results"
    )
    parser.add_argument("--cap", type=float, default=240, help="seconds for a mutant")
    parser.add_argument("--far", action="store_true", help="also tests of other rooms that import the mutant")
    parser.add_argument("results", nargs="*", type=Path, help="for table: what `run` wrote")
    given = parser.parse_args()
    if given.what == "draw":
        lines = (json.dumps(asdict(site)) for site in draw(ROOT, given.seed, given.count))
        print("[\n" + ",\n".join(lines) + "\n]")
        return
    # In the background SIGINT is ignored, by every child too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    mutants = [Site(**entry) for entry in json.loads(given.list.read_text())]
    if given.what == "run":
        given.work.mkdir(parents=True, exist_ok=True)
        target = tree(given.work, given.tests)
        run(target, mutants, given.cap, given.far, given.work / f"{target.name}.jsonl")
    else:
        print("\n".join(table(mutants, [read_results(path) for path in given.results])))


if __name__ == "__main__":
    main()
