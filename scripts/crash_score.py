#!/usr/bin/env python3
"""Score the crash laboratory: take the log's promises away one by one, and count which of that it finds.

    python scripts/crash_score.py draw --seed 36 --count 40
    python scripts/crash_score.py run --seed 36 --count 40 --work FOLDER
    python scripts/crash_score.py table --seed 36 --count 40 --work FOLDER

A mutant is one edit of a copy of walkit, drawn by seed among the sites of scripts/crash_sites.py, of each kind as many.
`run` explores every scenario under both profiles on each, in a child process, until a state breaks a rule; a child
that says nothing for so long hangs, which counts as found. Before that it explores walkit as it is, which must break no
rule, and notes which sites each scenario reaches: a mutant is run in those alone. Results stay in FOLDER by the tree of
walkit/, and a run that was stopped continues. `--first RESULTS` takes what was found at an earlier revision as it is,
and hunts the other mutants only in scenarios that did not reach them then.

A mutant that nothing can find goes into docs/evidence/crash-equivalents.json, with the line that makes it so, and the
next one drawn takes its place: of one in four at most.
"""

from __future__ import annotations

import argparse
import builtins
import difflib
import faulthandler
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if not __package__:  # run as a script
    sys.path.insert(0, str(ROOT))

from scripts.crash_sites import KINDS, draw, edit_of, kind_of, name_of, promise_sites  # noqa: E402
from scripts.mutant_sites import Site, beacons, compiles  # noqa: E402

EQUIVALENT = ROOT / "docs" / "evidence" / "crash-equivalents.json"
PROFILES = ("contract", "ext4-ordered")
BUDGET = 100
"""States of a scenario under each profile: as many as `walkit crashtest` judges by default."""
SILENT_S, CAP_S = 90.0, 1800.0
BEAT_S = 2.0


def equivalents(path: Path = EQUIVALENT) -> set[str]:
    """Return the names of the mutants that are called equivalent, for as long as the line that makes them so stands."""
    entries = json.loads(path.read_text()) if path.exists() else []
    return {e["name"] for e in entries if e["line"] in (ROOT / e["because_of"]).read_text()}


def copied(work: Path) -> Path:
    """Return a copy of the package and of these scripts, in which mutants are made."""
    tree = work / "tree"
    for name in ("walkit", "scripts"):
        shutil.copytree(ROOT / name, tree / name, dirs_exist_ok=True)
    return tree


def explored(
    tree: Path, wish: dict[str, Any], silent_s: float = SILENT_S, cap_s: float = CAP_S
) -> dict[str, Any]:
    """Explore in a child process on the package of a copy; return its last line, or why it ended."""
    # Without bytecode: a mutant of the same size, made in the same second, would run as the file before it.
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(tree)}
    command = [sys.executable, "-m", "scripts.crash_score", "explore", json.dumps(wish)]
    began, last = monotonic(), b""
    with (
        (tree / "child.log").open("w+") as log,
        subprocess.Popen(
            command, cwd=tree, env=environment, stdout=subprocess.PIPE, stderr=log, start_new_session=True
        ) as child,
    ):
        assert child.stdout is not None
        why, pending = "", b""
        try:
            while True:
                if not select.select([child.stdout], [], [], silent_s)[0]:
                    why = "hangs"
                    os.kill(child.pid, signal.SIGUSR1)  # its stacks go to the log
                    select.select([child.stdout], [], [], BEAT_S)
                    break
                if not (data := os.read(child.stdout.fileno(), 65536)):
                    break
                *lines, pending = (pending + data).split(b"\n")
                last = next((line for line in reversed(lines) if line), last)
                if monotonic() - began > cap_s:
                    why = "not found in the time it was given"
                    break
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        said: dict[str, Any] = json.loads(last or b"{}")
        seconds = {"seconds": round(monotonic() - began)}
        if why == "hangs":
            shutil.copy(tree / "child.log", tree.parent / f"hang-{child.pid}.log")
            return {"found": "hangs", "why": f"in {said.get('at', 'its beginning')}"} | seconds
        if not why and "found" not in said:
            log.seek(0)
            tail = log.read().strip().splitlines() or [f"exit code {child.wait()}"]
            return {"found": "ends", "why": tail[-1][:300]} | seconds
        return ({"found": None, "why": why} if why else said) | seconds


class Found(BaseException):
    """A rule that a state breaks; no exception that walkit or the explorer would handle."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(rule, text)
        self.rule, self.text = rule, text


class Judge:
    """The oracle of a scenario, which ends the exploration with the first rule that is broken."""

    def __init__(self, oracle: Any, at: str) -> None:
        self._oracle, self._at, self._next = oracle, at, monotonic() + BEAT_S

    def __getattr__(self, name: str) -> Any:
        return getattr(self._oracle, name)

    def judge(self, *given: Any, **named: Any) -> Any:
        """See `Oracle`."""
        from walkit.crashlab.crash_rules import BrokenRuleError

        if monotonic() > self._next:
            self._next = monotonic() + BEAT_S
            say({"at": self._at})
        try:
            return self._oracle.judge(*given, **named)
        except BrokenRuleError as error:
            raise Found(error.rule, error.text) from error


def watched(scenario: Any, at: str) -> Any:
    """Return a scenario that ends with the first rule that is broken."""

    class Watched(type(scenario)):  # type: ignore[misc]
        def play(self, *given: Any, **named: Any) -> Any:
            played = super().play(*given, **named)
            if played.failure is not None:
                raise Found("runs", f"{type(played.failure).__name__}: {played.failure}")
            return played

        def oracle(self) -> Any:
            return Judge(super().oracle(), at)

    return Watched(**{name: getattr(scenario, name) for name in type(scenario).__dataclass_fields__})


def say(what: dict[str, Any]) -> None:
    """Print one line for the parent."""
    print(json.dumps(what), flush=True)


def explore(wish: dict[str, Any]) -> dict[str, Any]:
    """Explore as wished for, in this process; return the rule that is broken first, and which beacons were reached."""
    faulthandler.register(signal.SIGUSR1)
    builtins.__reached__ = set().add  # type: ignore[attr-defined]
    from walkit import crashlab

    assert Path(crashlab.__file__).is_relative_to(Path.cwd()), "this is not the copy"
    reached: dict[str, set[int]] = {}
    wanted = wish.get("scenarios")
    for scenario in [name for name in crashlab.SCENARIOS if wanted is None or name in wanted]:
        builtins.__reached__ = reached.setdefault(scenario, set()).add  # type: ignore[attr-defined]
        for profile in PROFILES:
            at = f"{scenario}, {profile}"
            say({"at": at})
            try:
                judged = watched(crashlab.SCENARIOS[scenario], at)
                done = crashlab.explore(judged, wish["budget"], profile=profile)
            except Found as found:
                return {"found": f"{found.rule} in {at}", "why": found.text[:300]}
            except Exception as error:  # noqa: BLE001 - whatever the exploration raises is a finding
                return {"found": f"raises in {at}", "why": f"{type(error).__name__}: {error}"[:300]}
            if not done.ok:
                return {"found": f"coverage in {at}", "why": done.verdict}
    return {
        "found": None,
        "why": "no state breaks a rule",
        "reached": {k: sorted(v) for k, v in reached.items()},
    }


def reach(tree: Path, sites: list[Site], budget: int) -> dict[str, list[str]]:
    """Explore walkit as it is, with beacons; return the scenarios that reach each site, by the site's name.

    RuntimeError if a state breaks a rule: then the laboratory cannot tell a mutant.
    """
    places: dict[tuple[str, int, str], int] = {}
    shown: list[Site] = []
    for site in sites:
        start = site.start((ROOT / site.file).read_bytes())
        if places.setdefault((site.file, start or 0, site.before), len(shown)) == len(shown):
            shown.append(site)
    for file, source in beacons(ROOT, shown).items():
        (tree / file).write_bytes(source)
    try:
        said = explored(tree, {"budget": budget}, cap_s=4 * CAP_S)
    finally:
        for site in shown:
            shutil.copy2(ROOT / site.file, tree / site.file)
    if said["found"] or "reached" not in said:
        raise RuntimeError(f"walkit as it is: {said}")
    by_place = {
        n: [scenario for scenario, seen in said["reached"].items() if n in seen] for n in range(len(shown))
    }
    number = {
        name_of(site): places[site.file, site.start((ROOT / site.file).read_bytes()) or 0, site.before]
        for site in sites
    }
    return {name: by_place[n] for name, n in number.items()}


def hunt(tree: Path, site: Site, scenarios: list[str], budget: int, **limits: float) -> dict[str, Any]:
    """Explore a mutant in the scenarios that reach it; return the outcome."""
    if not scenarios:
        return {"found": None, "why": "no scenario reaches it", "seconds": 0}
    original, path = ROOT / site.file, tree / site.file
    mutated = site.mutated(original.read_bytes())
    assert mutated is not None and compiles(mutated)
    path.write_bytes(mutated)
    try:
        said = explored(tree, {"budget": budget, "scenarios": scenarios}, **limits)
    finally:
        shutil.copy2(original, path)
    return {key: value for key, value in said.items() if key != "reached"}


def revision() -> str:
    """Return the git tree of walkit/, marked if it has changes: the basis of a result, whatever else is committed."""
    git = ["git", "-C", str(ROOT)]
    wanted = (["rev-parse", "--short=12", "HEAD:walkit"], ["status", "--porcelain", "walkit"])
    tree, changes = (
        subprocess.run([*git, *words], check=True, capture_output=True, text=True).stdout.strip()
        for words in wanted
    )
    return f"{tree}-changed" if changes else tree


def read_results(path: Path | None) -> dict[str, dict[str, Any]]:
    """Return the last result of each mutant, by its name."""
    lines = path.read_text().splitlines() if path is not None and path.exists() else []
    return {result["name"]: result for result in map(json.loads, lines)}


def run(
    drawn: list[Site],
    sites: list[Site],
    work: Path,
    results: Path,
    first: Path | None,
    budget: int,
) -> None:
    """Hunt each mutant that has no result yet."""
    tree, done, earlier = copied(work), read_results(results), read_results(first)
    known = results.with_suffix(".reach.json")
    if not known.exists():
        known.write_text(json.dumps(reach(tree, sites, budget)))
    reached: dict[str, list[str]] = json.loads(known.read_text())
    for n, site in enumerate(drawn):
        name = name_of(site)
        if name in done:
            continue
        result = earlier.get(name, {})
        if not result.get("found"):
            new = [scenario for scenario in reached[name] if scenario not in result.get("reached", ())]
            if new or not result:
                result = {"name": name, "reached": reached[name]} | hunt(tree, site, new, budget)
        with results.open("a") as file:
            file.write(json.dumps(result) + "\n")
        print(
            n,
            f"{site.kind}, {site.file}:{site.line}:",
            result["found"] or "not found",
            result["why"],
            flush=True,
        )


def difference(site: Site) -> str:
    """Return the edit as a diff without context."""
    before = (ROOT / site.file).read_bytes()
    after = site.mutated(before)
    assert after is not None
    old, new = (text.decode().splitlines() for text in (before, after))
    return "\n".join([*difflib.unified_diff(old, new, lineterm="", n=0)][3:])


def table(drawn: list[Site], passed: list[Site], results: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yield the score by kind, the scenario that found each mutant, and a diff of each that was not found."""
    found = {name for name, result in results.items() if result["found"]}
    yield "| kind | mutants | found | equivalent, replaced |\n|---|---:|---:|---:|"
    for kind in KINDS:
        names, out = (
            [name_of(s) for s in drawn if kind_of(s) == kind],
            [s for s in passed if kind_of(s) == kind],
        )
        yield f"| {kind} | {len(names)} | {len(found & {*names})} | {len(out)} |"
    yield f"| all | {len(drawn)} | {sum(name_of(s) in found for s in drawn)} | {len(passed)} |"
    yield "\n| mutant | edit | found by |\n|---|---|---|"
    for site in drawn:
        result = results.get(name_of(site), {"found": None, "why": "not run"})
        said = result["found"] or f"**not found**: {result['why']}"
        yield f"| {site.file}:{site.line} | {kind_of(site)} {edit_of(site)} | {said} |"
    for site in drawn:
        if name_of(site) not in found:
            yield f"\n{name_of(site)}, {site.kind}, {site.file}:{site.line}\n```diff\n{difference(site)}\n```"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["draw", "run", "table", "explore"])
    parser.add_argument(
        "wish", nargs="?", help="of explore, which `run` starts: what is to be explored, as JSON"
    )
    parser.add_argument("--seed", type=int, default=36)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument(
        "--work", type=Path, default=ROOT / "build" / "crash-score", help="for the copy and the results"
    )
    parser.add_argument("--first", type=Path, help="earlier results: their finds are not hunted again")
    parser.add_argument("--budget", type=int, default=BUDGET, help="states of each scenario")
    given = parser.parse_args()
    if given.what == "explore":
        say(explore(json.loads(given.wish)))
        return
    sites = promise_sites(ROOT)
    drawn, passed = draw(sites, given.seed, given.count, equivalents())
    results = given.work / f"{revision()}.jsonl"
    if given.what == "draw":
        for site in drawn:
            print(f"{name_of(site)} {site.kind}, {site.file}:{site.line}\n{difference(site)}")
    elif given.what == "run":
        given.work.mkdir(parents=True, exist_ok=True)
        run(drawn, sites, given.work.resolve(), results, given.first, given.budget)
    else:
        print("\n".join(table(drawn, passed, read_results(results))))


if __name__ == "__main__":
    main()
