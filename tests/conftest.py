"""Fixtures of every test, the order of the groups, and Hypothesis set to the same examples on every run."""

from __future__ import annotations

import gc
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from scripts.browsing import find_browser, open_browser
from tests.support.examples import examples
from tests.support.once import Once, made_once, shared_folder
from tests.support.surroundings import settle

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytest_plugins = ["tests.support.budgets", "tests.support.leftovers"]

settle()

# Until all tests are collected: a collection of garbage finds none among the objects that stay.
gc.disable()

# The suites that the package ships fail with their values shown, like tests here. Before anything imports them.
pytest.register_assert_rewrite("walkit.testing")

ROOT = Path(__file__).resolve().parent.parent

# A deadline would fail a test because the machine is busy. `make test` takes the same examples on each run, so that a
# state machine of few examples reaches each of its effects always or never; other profiles draw new ones.
settings.register_profile(
    "commit", deadline=None, print_blob=True, max_examples=examples(100), derandomize=True, database=None
)
settings.register_profile("release", deadline=None, print_blob=True, max_examples=100)
settings.register_profile("thorough", deadline=None, print_blob=True, max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "commit"))


# In several processes (`make test` says `-n 2 --dist loadfile`) the tests of a file stay together, so that what they
# share is made once; so do the rooms that share a Spark session, a browser with a server, or a JupyterLab. The longest
# begin first.
TOGETHER = {
    "tests/spark/": "spark",
    "tests/demo/": "spark",
    "tests/dashboards/": "dashboards",
    "tests/lab/": "lab",
}
LONGEST_FIRST = (
    *("tests/spark/", "tests/demo/", "tests/dashboards/", "tests/lab/", "tests/site/"),
    "tests/simulate/test_world",
    "tests/replication/test_chaos",
)


def group_of(nodeid: str) -> str:
    """The tests that share one process: those of a file, or of the rooms named above; a notebook runs alone."""
    path, _, test = nodeid.partition("::")
    if test.startswith("test_notebooks_run"):
        return nodeid
    return next((group for start, group in TOGETHER.items() if path.startswith(start)), path)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out whole groups; pytest-xdist's own marks of groups do nothing with pytest 9.2."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadScopeScheduling

    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = group_of
    return scheduler


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In several processes the longest groups go first, so that none of them is alone at the end."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not item.nodeid.startswith(LONGEST_FIRST))


def pytest_collection_finish() -> None:
    """Look through the 600,000 objects of the collected tests once, and not in each collection that a test asks for."""
    gc.collect()
    gc.freeze()
    gc.enable()


@dataclass(frozen=True, kw_only=True)
class Checkout:
    """The project's files, without what git ignores."""

    root: Path

    def files(self, *suffixes: str) -> dict[str, str]:
        """Text of the files that are committed, or would be, by path; binary files are left out."""
        texts = {}
        for name in self.names():
            path = self.root / name
            if name.endswith(suffixes or "") and path.is_file():
                data = path.read_bytes()
                if b"\0" not in data:
                    texts[name] = data.decode()
        return texts

    def names(self) -> list[str]:
        """Paths from the root, sorted. Without git (an unpacked source archive) every file is taken."""
        command = [
            "git",
            "-c",
            "safe.directory=*",
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ]
        try:
            listed = subprocess.run(command, cwd=self.root, check=True, capture_output=True, text=True).stdout
        except (OSError, subprocess.CalledProcessError):
            found = (path.relative_to(self.root) for path in self.root.rglob("*") if path.is_file())
            return sorted(str(path) for path in found if not path.parts[0].startswith(".venv"))
        return sorted(set(listed.split("\0")) - {""})


@pytest.fixture(scope="session")
def checkout() -> Checkout:
    """This checkout."""
    return Checkout(root=ROOT)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The browser, for a module alone: until it ends, Playwright keeps an event loop running in this thread."""
    path = find_browser()
    if path is None:
        missing = "no Chromium on this machine: install it (Debian: apt-get install chromium)"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    with open_browser(path) as running:
        yield running


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """Make something once for all processes of this run: `once("site", build)` returns the folder it is in."""
    shared = shared_folder(tmp_path_factory)
    return lambda name, make: made_once(shared, name, make)
