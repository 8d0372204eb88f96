"""scripts/crash_score.py: which promises it takes away, how it draws, and that the laboratory finds three mutants."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.crash_score import ROOT, copied, hunt
from scripts.crash_sites import CALLS, COMPARED, EDITS, KINDS, draw, edit_of, kind_of, name_of, promise_sites
from scripts.mutant_sites import Site, compiles

SEED, COUNT = 36, 40


@pytest.fixture(scope="module")
def sites() -> list[Site]:
    """All sites of this checkout."""
    return promise_sites(ROOT)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy in which mutants are made."""
    return copied(tmp_path_factory.mktemp("score"))


def test_a_draw_is_that_of_its_seed_and_even_over_kinds(sites: list[Site]) -> None:
    """Draw twice by one seed, by another, and with some called equivalent: their places go to the next ones drawn."""
    drawn, passed = draw(sites, SEED, COUNT)
    assert drawn == draw(sites[::-1], SEED, COUNT)[0] and not passed
    assert all(compiles(site.mutated((ROOT / site.file).read_bytes())) for site in drawn)
    assert drawn != draw(sites, SEED + 1, COUNT)[0]
    counts = [sum(kind_of(site) == kind for site in drawn) for kind in KINDS]
    assert sum(counts) == COUNT and max(counts) - min(counts) <= 1
    assert {edit_of(site) for site in sites} == {*EDITS} and {*KINDS} == {*CALLS, *COMPARED}
    known = {name_of(site) for site in drawn[:13]}
    without, passed = draw(sites, SEED, COUNT, known)
    assert {name_of(site) for site in passed} == known and len(without) == COUNT
    assert not known & {name_of(site) for site in without}
    with pytest.raises(ValueError, match="one in four"):
        draw(sites, SEED, COUNT, {name_of(site) for site in drawn[:14]})


@pytest.mark.parametrize(
    ("kind", "file", "before", "scenario"),
    [
        ("sync, dropped", "walkit/commit/ways_in.py", "self._sync_writes", "append"),
        # Slow: a hunt in a process for each; test_museum has bugs of these kinds.
        pytest.param(
            "sync of a directory, dropped",
            "walkit/segments/segment_set.py",
            "self.storage.sync_directory",
            "append",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "watermark, inverted",
            "walkit/log/trim.py",
            "s.last_lsn <= low",
            "trim",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_promise_taken_away_is_found(
    tree: Path, sites: list[Site], kind: str, file: str, before: str, scenario: str
) -> None:
    """Explore one mutant of each of three kinds with few states: a rule is broken, and the copy is whole again."""
    site = next(s for s in sites if (s.kind, s.file) == (kind, file) and s.before.startswith(before))
    assert hunt(tree, site, [scenario], 20)["found"].endswith(f"in {scenario}, contract")
    assert (tree / file).read_bytes() == (ROOT / file).read_bytes()
