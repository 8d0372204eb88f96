"""The corpus of damaged logs: every judge of damage gives each the same verdict as before."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tests.recovery.damage_corpus import CASES, DAMAGES, case, golden_hashes, load_bases, run

SAMPLE = range(0, CASES, 521)
"""Prime to the number of bases, so that each of them is in it."""


def _check(numbers: range) -> None:
    golden = golden_hashes()
    different: list[str] = []
    for number in numbers:
        _, found, line = run(number)
        assert "untyped" not in line, f"an error outside WalkitError: {line}"
        said = json.loads(line)
        judged = said["outcome"]
        if any("error" in judged[way] for way in ("open prefix", "open holes", "reader")):
            assert judged["verify"].get("ok") is not True and judged["scan"].get("ok") is not True, number
        if found != golden[number]:
            different.append(f"case {number} ({said['base']}: {said['damages']})")
    assert not different, (
        f"{len(different)} of {len(numbers)} are judged otherwise, the first {different[:5]}; "
        "python -m tests.recovery.damage_corpus says how to look at them"
    )


def test_a_sample_of_damaged_logs_is_judged_as_before() -> None:
    """Damage every base in some ways: all match the golden file, none is ok if an opening refuses."""
    _check(SAMPLE)


@pytest.mark.slow  # half an hour: eleven judges of 20,000 logs
@pytest.mark.timeout(3600)
def test_all_damaged_logs_are_judged_as_before() -> None:
    """Run the whole corpus: each of the 20,000 outcomes has the hash of the golden file, and no error is untyped."""
    _check(range(CASES))


def test_the_corpus_has_every_base_and_every_damage() -> None:
    """Count the sample's parts: each base and each damage is in it, and few cases are left as they were."""
    cases = [case(number) for number in SAMPLE]
    assert {c.base for c in cases} == set(load_bases())
    done = Counter(text.split()[0] for c in cases for text in c.damages)
    assert len(done) >= len(DAMAGES), done
    untouched = sum(c.files == load_bases()[c.base].files for c in cases)
    assert untouched < len(cases) / 10
