"""scripts/mutants.py: what it draws, how it edits, and that it tells a mutant that is found from one that is not."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from scripts import mutants
from scripts.mutant_sites import KINDS, Finder, Site, compiles, draw

if TYPE_CHECKING:
    from pathlib import Path

MODULE = '''"""A module."""

LIMIT = 3


def small(n: int, told: list[int]) -> bool:
    """Whether it is."""
    if n < 0:
        raise ValueError("it is below zero")
    told.append(n)
    if n == -1:
        told.clear()
    return n <= LIMIT
'''
TEST = """from walkit.room import small

def test_small():
    told = []
    assert small(3, told) and not small(4, told) and told == [3, 4]

def test_of_nothing():
    assert True
"""


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """A checkout with one module, one file of tests and an environment that is this one."""
    target = tmp_path / "toy"
    for name, text in (
        ("walkit/__init__.py", ""),
        ("walkit/room/__init__.py", MODULE),
        ("tests/test_room.py", TEST),
    ):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text(text)
    python = target / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        f'#!/bin/sh\nPYTEST_DISABLE_PLUGIN_AUTOLOAD=1 PYTHONPATH="{target}" exec "{sys.executable}" "$@"\n'
    )
    python.chmod(0o755)
    return target


def sites(toy: Path) -> list[Site]:
    file = "walkit/room/__init__.py"
    return Finder(file, (toy / file).read_bytes()).found


def test_each_kind_is_found_and_is_one_edit_that_compiles(toy: Path) -> None:
    """All sites of a small module: what each becomes, one line differs, and no text of an error or docstring is one."""
    source = (toy / "walkit/room/__init__.py").read_bytes()
    found = sites(toy)
    assert {site.kind for site in found} == {*KINDS}
    assert [(site.before, site.after) for site in found if site.line < 12] == [
        ("3", "4"),
        ("n < 0", "(n < 0) or True"),
        ("n < 0", "n <= 0"),
        ("n < 0", "n >= 0"),
        ("0", "1"),
        ("told.append(n)", "pass"),
        ("n == -1", "(n == -1) or True"),
        ("n == -1", "n != -1"),
        ("1", "2"),
    ]
    for site in found:
        mutated = site.mutated(source)
        assert mutated is not None and compiles(mutated)
        pairs = zip(source.splitlines(), mutated.splitlines(), strict=True)
        assert sum(old != new for old, new in pairs) == 1
    assert found[0].mutated(b"LIMIT = 4\n") is None


def test_a_draw_is_made_by_its_seed(toy: Path) -> None:
    """The same seed draws the same, another one something else; every room has its part, and so has every kind."""
    drawn = draw(toy, 1, 8)
    assert drawn == draw(toy, 1, 8) != draw(toy, 2, 8)
    assert len({site.key for site in drawn}) == 8
    (toy / "walkit" / "other").mkdir()
    (toy / "walkit" / "other" / "__init__.py").write_text("def f(n: int) -> bool:\n    return n > 1\n")
    assert {site.room for site in draw(toy, 1, 4)} == {"room", "other"}


@pytest.mark.slow  # Runs of pytest for a script; what it draws and how it edits is tested above.
def test_a_mutant_is_found_by_its_rooms_tests_or_survives(toy: Path) -> None:
    """Hunt a constant changed and a call dropped in dead code: the first is found, and the module is as it was."""
    changed, dropped = (next(s for s in sites(toy) if s.before == text) for text in ("3", "told.clear()"))
    results = toy.with_name("results.jsonl")
    mutants.run(toy, [changed, dropped], 60, far=True, results=results)
    found = mutants.read_results(results)
    assert found[changed.key]["found"] == "tests/test_room.py::test_small"
    why = "none of 1 files fails"
    assert found[dropped.key] == {"key": dropped.key, "found": None, "why": why}
    assert (toy / "walkit/room/__init__.py").read_text() == MODULE
    lines = [*mutants.table([changed, dropped], [found])]
    assert "| room | 2 | 1 |" in lines
