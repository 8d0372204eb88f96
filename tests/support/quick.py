"""Runs `make quick`: the tests that the changed files reach, the nearest first, for a minute.

Reach follows the imports. Tests that need a JVM, a browser or JupyterLab are left out. The run counts the files beyond
the nearest and the tests that have not started after a minute; `make test` runs all of them.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from tests.support.import_graph import front_door, import_graph, module_of, reached, taken_at_the_door

SECONDS = 55
FILES_MAX = 60
UNTIL = "QUICK_TESTS_UNTIL"
ROOTS = ("walkit", "pyspark_walkit", "pytest_walkit", "dashboards", "scripts", "tests")
LEFT_OUT = (
    "tests/dashboards/",
    "tests/demo/",
    "tests/lab/",
    "tests/notebooks/",
    "tests/site/",
    "tests/spark/",
)
ALWAYS = ("tests/test_architecture.py",)
"""The rules of the house, which any change may break."""


def changed_files(base: str) -> list[str]:
    """Return the files that differ from a commit, and those that git does not know yet."""
    commands = (("diff", "--name-only", base), ("ls-files", "--others", "--exclude-standard"))
    done = [subprocess.run(["git", *c], check=True, capture_output=True, text=True) for c in commands]
    return sorted({line for one in done for line in one.stdout.splitlines()})


def nearest_tests(files: Mapping[str, str], changed: Iterable[str]) -> list[str]:
    """Return the files of tests that reach one of `changed`, the nearest first, a changed room's own before others."""
    changed = list(changed)
    graph, door = import_graph(files), front_door(files["walkit/__init__.py"])
    paths = {module_of(path): path for path in files}
    for name, path in paths.items():
        if name.startswith("tests."):
            graph[name] |= {
                door[taken] for taken in taken_at_the_door(files[path]) if taken in door
            } & graph.keys()
    steps = reached(graph, (module_of(path) for path in changed if path in files))
    rooms = {path.split("/")[1].removesuffix(".py") for path in changed if path.startswith("walkit/")}
    tests = [paths[name] for name in steps if name.rpartition(".")[2].startswith("test_")]
    tests = [path for path in tests if path.startswith("tests/") and not path.startswith(LEFT_OUT)]
    return sorted(tests, key=lambda p: (p.split("/")[1] not in rooms, steps[module_of(p)], len(files[p])))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what begins after the time."""
    if time.time() > float(os.environ.get(UNTIL, "inf")):
        pytest.skip(f"not started within {SECONDS} s: make test runs it")


def main() -> int:
    """Run the tests; returns pytest's exit code."""
    parser = argparse.ArgumentParser(prog="make quick", description=__doc__)
    parser.add_argument(
        "--base", default="HEAD", help="what the files are compared to (default: %(default)s)"
    )
    parser.add_argument("-n", dest="processes", default="2", help="processes (default: %(default)s)")
    options, rest = parser.parse_known_args()
    changed = changed_files(options.base)
    paths = [path for root in ROOTS for path in Path(root).rglob("*.py") if "_pb2" not in path.name]
    tests = nearest_tests({str(path): path.read_text(encoding="utf-8") for path in paths}, changed)
    if not changed:
        print(f"nothing differs from {options.base}; ARGS='--base HEAD~1' takes the last commit, too")
        return 0
    farther = len(tests) - FILES_MAX
    left = f"; the nearest {FILES_MAX} run, {farther} are left to make test" if farther > 0 else ""
    print(f"{len(changed)} changed files reach {len(tests)} files of tests{left}", flush=True)
    tests = tests[:FILES_MAX]
    os.environ[UNTIL] = str(time.time() + SECONDS)
    chosen = [*tests, *(path for path in ALWAYS if path not in tests)]
    plugin = [
        "-p",
        "tests.support.quick",
        "-m",
        "not slow and not spark",
        "--timeout",
        "60",
        "--durations",
        "5",
    ]
    command = [
        "-n",
        options.processes,
        "--dist",
        "loadfile",
        "--no-loadscope-reorder",
        *plugin,
        *rest,
        *chosen,
    ]
    return subprocess.run([sys.executable, "-m", "pytest", *command]).returncode


if __name__ == "__main__":
    sys.exit(main())
