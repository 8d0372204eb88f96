#!/usr/bin/env python3
"""Measure the net of tests: draw mutants by seed, run each against the tests that reach it, count those found.

    python scripts/mutants.py draw --seed 33 --count 40 > docs/evidence/mutants.json
    python scripts/mutants.py reach --tests REVISION --work FOLDER
    python scripts/mutants.py run --tests REVISION --work FOLDER
    python scripts/mutants.py table --work FOLDER

A mutant is one edit: a comparison turned, a call dropped, a constant changed, a branch taken always. `reach` runs the
tests of a revision once, unchanged except for beacons at the places of the mutants. `run` takes the mutants one by one,
until a test fails that passes without it; the tests of the mutant's room first, fast ones before slow ones. Both work
in FOLDER, in a clone of the revision with an environment of its own, and resume after a stop.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if not __package__:  # run as a script
    sys.path.insert(0, str(ROOT))

from scripts.mutant_sites import GROUND, Site, beacons, draw  # noqa: E402

LIST = ROOT / "docs" / "evidence" / "mutants.json"
PROBE = Path(__file__).with_name("mutants_probe.py")
TESTED_IN = {
    "bench": ("workload", "benchmarks"),
    "testing": ("storage", "state"),
    "views": ("dashboards",),
    GROUND: ("_internal", "record", "main_thread", "outgoing_errors"),
}
"""Rooms whose tests are in the folder of another one."""
PIECES = (40, 400, 10_000)
"""How many tests one process of pytest is given: few at first, since most mutants are found soon."""


def tree(work: Path, tests: str, purpose: str) -> Path:
    """Return a clone of a revision (or of another checkout) with an environment of its own, and the probe in that."""
    origin, revision = (Path(tests), "HEAD") if Path(tests).is_dir() else (ROOT, tests)
    git = ["git", "-C", str(origin), "rev-parse", "--short=12", revision]
    name = subprocess.run(git, check=True, capture_output=True, text=True).stdout.strip()
    target = work.resolve() / f"{purpose}-{name}"
    if not target.exists():
        subprocess.run(["git", "clone", "-q", str(origin.resolve()), str(target)], check=True)
    subprocess.run(["git", "checkout", "-q", "--force", name], cwd=target, check=True)
    subprocess.run(["make", "-s", "setup"], cwd=target, check=True)
    packages = next(target.glob(".venv/lib/python3*/site-packages"))
    shutil.copy(PROBE, packages)
    (packages / PROBE.name).with_suffix(".pth").write_text(f"import {PROBE.stem}\n")
    (packages / PROBE.name).with_suffix(".txt").write_text(str(notes_of(target)))
    return target


def notes_of(target: Path) -> Path:
    """Return the file to which the processes of a tree write their notes."""
    return target.with_name(f"{target.name}.notes")


def pytest(
    target: Path, arguments: Iterable[str], limit_s: float | None = None, **variables: str
) -> str | None:
    """Run pytest in a tree, and end its leftovers; return None, or why it did not end by itself."""
    command = [
        ".venv/bin/python",
        "-m",
        "pytest",
        "-q",
        *("-p", PROBE.stem, "-p", "no:cacheprovider"),
    ]
    command += [f"--basetemp={target}.tmp", *arguments]
    # Without bytecode: a mutant of the same size, made in the same second, would run as the file before it.
    environment = os.environ | {"HYPOTHESIS_PROFILE": "ci", "PYTHONDONTWRITEBYTECODE": "1"} | variables
    with (
        target.with_name(f"{target.name}.log").open("w") as log,
        subprocess.Popen(
            command, cwd=target, env=environment, stdout=log, stderr=log, start_new_session=True
        ) as process,
    ):
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return "pytest hangs"
        finally:
            for kill in (signal.SIGTERM, signal.SIGKILL):
                try:
                    os.killpg(process.pid, kill)
                    process.wait(5)
                except (ProcessLookupError, subprocess.TimeoutExpired):
                    pass
    return None if process.returncode in (0, 1, 2, 5) else f"pytest ends with {process.returncode}"


def notes(target: Path) -> list[dict[str, Any]]:
    """Return the notes of a tree's processes."""
    path = notes_of(target)
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def attributed(noted: list[dict[str, Any]], count: int) -> list[list[str]]:
    """Return the tests that reach each of the sites.

    Lines reached while a fixture is made or ended count for all tests of the file. A process that outlives the test
    that has started it (a server, a worker of Spark) reaches for any test that runs at that moment.
    """
    spans = {n["ended"]: (n["began"], n["at"]) for n in noted if "ended" in n}
    of_file = defaultdict(list)
    for name in spans:
        of_file[name.partition("::")[0]].append(name)
    reach: list[set[str]] = [set() for _ in range(count)]
    for entry in noted:
        if "site" not in entry:
            continue
        test, _, phase = entry["test"].rpartition(" (")
        began, ended = spans.get(test, (math.inf, 0.0))
        if not began <= entry["at"] <= ended:
            reach[entry["site"]] |= {t for t, (start, end) in spans.items() if start <= entry["at"] <= end}
        elif phase == "call)":
            reach[entry["site"]].add(test)
        else:
            reach[entry["site"]] |= {*of_file[test.partition("::")[0]]}
    return [sorted(tests) for tests in reach]


def measure_reach(target: Path, mutants: list[Site], arguments: list[str]) -> None:
    """Run the tests that have not been run yet with the beacons; write down what each takes, and who reaches what."""
    without = target.with_name(f"{target.name}.without")
    without.write_text(json.dumps([n["ended"] for n in notes(target) if "ended" in n]))
    for file, source in beacons(target, mutants).items():
        (target / file).write_bytes(source)
    pytest(target, arguments, MUTANTS_WITHOUT=str(without))
    subprocess.run(["git", "checkout", "-q", "--", "walkit"], cwd=target, check=True)
    noted = notes(target)
    seconds: dict[str, float] = defaultdict(float)
    for n in noted:
        if (
            "ended" in n
        ):  # pytest-xdist reports it twice: in the process that ran it, and in the one that was told
            seconds[n["ended"]] = max(seconds[n["ended"]], n["cpu"], (n["at"] - n["began"]) / 4)
    known = {"seconds": seconds, "reach": attributed(noted, len(mutants))}
    target.with_name("reach.json").write_text(json.dumps(known))


def queue(mutant: Site, reached: Iterable[str], tests: list[str], seconds: dict[str, float]) -> list[str]:
    """Return the tests for a mutant in order: its room's first, fast ones first; at the end those not measured."""
    own = {mutant.room, *TESTED_IN.get(mutant.room, ())}
    candidates, order = set(reached), {name: n for n, name in enumerate(tests)}

    def key(test: str) -> tuple[bool, bool, int, str, int]:
        file, taken = test.partition("::")[0], seconds.get(test, 10.0)
        room = file.split("/")[1].removeprefix("test_").removesuffix(".py")
        return (
            test not in candidates,
            room not in own,
            max(0, round(math.log2(taken * 8 + 0.1))),
            file,
            order[test],
        )

    return sorted((t for t in tests if t in candidates or t not in seconds), key=key)


def hunt(target: Path, mutant: Site, tests: list[str], cap_s: float, first: str | None) -> dict[str, Any]:
    """Run a mutant's tests until one fails, fails again, and passes without it; return the outcome."""
    path, selection = target / mutant.file, target.with_name(f"{target.name}.selected")
    original = path.read_bytes()
    mutated = mutant.mutated(original)
    if mutated is None:
        return {"found": None, "why": "gone: its lines are no longer there"}
    known = [t for t in tests if first and (t == first or t.startswith(f"{first}::"))][:1]
    rest = iter([t for t in tests if t not in known])
    pieces = [known] if known else []
    pieces += [piece for size in PIECES if (piece := [*itertools.islice(rest, size)])]
    ran, used = 0, 0.0

    def go(names: list[str], source: bytes, cap: float) -> tuple[str | None, str]:
        selection.write_text(json.dumps(names))
        notes_of(target).unlink(missing_ok=True)
        path.write_bytes(source)
        try:
            files = dict.fromkeys(name.partition("::")[0] for name in names)
            limits = {"MUTANTS_ONLY": str(selection), "MUTANTS_CAP": str(cap)}
            hangs = pytest(target, ["-x", *files], 5 * cap + 300, **limits)
        finally:
            path.write_bytes(original)
        failed = next(
            (n for n in notes(target) if "failed" in n), {"failed": names[0] if hangs else None, "why": hangs}
        )
        return failed["failed"], failed["why"] or ""

    for piece in pieces:
        left = piece
        while left and used < cap_s:
            found, why = go(left, mutated, cap_s - used)
            noted = [n for n in notes(target) if "ended" in n]
            ran, used = ran + len(noted), used + sum(n["cpu"] for n in noted)
            if found is None:
                break
            again, without = go([found], mutated, math.inf)[0], go([found], original, math.inf)[0]
            if again is not None and without is None:
                return {"found": found, "why": why, "ran": ran, "seconds": round(used)}
            left = left[left.index(found) + 1 :] if found in left else []  # it fails by itself, or by chance
    why = f"no test of {ran} fails" + (f", in the {cap_s:.0f} s it was given" if used >= cap_s else "")
    return {"found": None, "why": why, "ran": ran, "seconds": round(used), "cap": cap_s}


def run(target: Path, mutants: list[Site], cap_s: float, earlier: dict[str, Any], results: Path) -> None:
    """Hunt each mutant that has no result yet, or was not found within less time than there is now.

    Given earlier results, it hunts only the mutants found then. Without `reach`, tests go by their rooms alone.
    """
    measured = target.with_name("reach.json")
    nothing: dict[str, Any] = {"seconds": {}, "reach": [[] for _ in mutants]}
    known = json.loads(measured.read_text()) if measured.exists() else nothing
    listed = target.with_name(f"{target.name}.tests")
    if not listed.exists():
        pytest(target, ["--collect-only"], MUTANTS_LIST=str(listed))
    tests, done = json.loads(listed.read_text()), read_results(results)
    for n, mutant in enumerate(mutants):
        before = done.get(mutant.key)
        if before and (before["found"] or before.get("cap", math.inf) >= cap_s):
            continue
        first = earlier.get(mutant.key, {}).get("found")
        if earlier and not first:
            continue
        order = queue(mutant, known["reach"][n], tests, known["seconds"])
        result = {"key": mutant.key} | hunt(target, mutant, order, cap_s, first)
        with results.open("a") as file:
            file.write(json.dumps(result) + "\n")
        print(n, result, flush=True)


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
    parser.add_argument("what", choices=["draw", "reach", "run", "table"])
    parser.add_argument("--seed", type=int, default=33)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--list", type=Path, default=LIST, help="the mutants that were drawn")
    parser.add_argument("--tests", default="HEAD", help="the revision, or the checkout, whose tests are run")
    parser.add_argument(
        "--work", type=Path, default=Path("build/mutants"), help="a folder to work in, and for results"
    )
    parser.add_argument("--cap", type=float, default=240, help="seconds of the processor for a mutant")
    parser.add_argument(
        "--first", type=Path, help="earlier results: only the mutants found, by the same test first"
    )
    parser.add_argument("arguments", nargs="*", help="for pytest, behind --: reach -- -n 2 --dist loadfile")
    given = parser.parse_args()
    if given.what == "draw":
        lines = (json.dumps(asdict(site)) for site in draw(ROOT, given.seed, given.count))
        print("[\n" + ",\n".join(lines) + "\n]")
        return
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # in the background it is ignored, by every child too
    mutants = [Site(**entry) for entry in json.loads(given.list.read_text())]
    given.work.mkdir(parents=True, exist_ok=True)
    if given.what == "reach":
        measure_reach(tree(given.work, given.tests, "reach"), mutants, given.arguments)
    elif given.what == "run":
        target = tree(given.work, given.tests, "run")
        earlier = read_results(given.first) if given.first else {}
        run(target, mutants, given.cap, earlier, given.work / f"{target.name}.jsonl")
    else:
        paths = [Path(name) for name in given.arguments] or sorted(given.work.glob("run-*.jsonl"))
        print("\n".join(table(mutants, [read_results(path) for path in paths])))


if __name__ == "__main__":
    main()
