"""Generated workloads: distributions are what they say, the seed fixes everything, what cannot be is refused."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from walkit.errors import OptionsError
from walkit.record import Kind
from walkit.workload import (
    YCSB,
    KeyChoice,
    Mix,
    OpenLoop,
    UniformBytes,
    Workload,
    ycsb,
)
from walkit.workload.distributions import fnv_hash, value_sizes, zipf_distribution
from walkit.workload.operations import READ

NOTHING_INSERTED = np.zeros(200_000, np.int64)


def drawn(choice: KeyChoice, inserted: Any = NOTHING_INSERTED, seed: int = 3) -> Any:
    return choice.numbers(np.random.default_rng(seed), inserted)


def plain_fnv(number: int) -> int:
    """YCSB's Utils.fnvhash64, a byte at a time in Python's own numbers."""
    hashed = 0xCBF29CE484222325
    for _ in range(8):
        hashed = ((hashed ^ (number & 0xFF)) * 1099511628211) % 2**64
        number >>= 8
    return abs(hashed - 2**64 if hashed >= 2**63 else hashed)


@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=20))
def test_the_hash_is_that_of_ycsb(numbers: list[int]) -> None:
    """The vectorised hash of any numbers is that of a loop in plain Python."""
    assert fnv_hash(np.array(numbers, np.int64)).tolist() == [plain_fnv(n) for n in numbers]


def test_zipfian_ranks_have_their_shares() -> None:
    """200,000 draws over 1,000 keys: each of the first ranks within five standard deviations of r**-theta / zeta."""
    choice = KeyChoice(kind="zipfian", count=1000, scrambled=False)
    counts = np.bincount(drawn(choice), minlength=1000)
    shares = np.arange(1, 1001) ** -0.99
    expected = shares / shares.sum() * len(NOTHING_INSERTED)
    assert (np.abs(counts - expected)[:50] < 5 * np.sqrt(expected[:50])).all()
    assert zipf_distribution(1000, 0.99)[0] == pytest.approx(shares[0] / shares.sum())


def test_scrambling_moves_the_popular_keys_and_keeps_their_shares() -> None:
    """The same draws scrambled: each number is the hash of the rank, so the most popular key has the same count."""
    plain = drawn(KeyChoice(kind="zipfian", count=1000, scrambled=False))
    scrambled = drawn(KeyChoice(kind="zipfian", count=1000))
    assert (scrambled == fnv_hash(plain) % 1000).all()
    assert np.bincount(scrambled).argmax() == plain_fnv(0) % 1000


def test_latest_uniform_and_sequential() -> None:
    """latest falls off after the newest key, also as keys are added; uniform is even; sequential goes round."""
    inserted = np.arange(len(NOTHING_INSERTED))
    behind = 100 + inserted - 1 - drawn(KeyChoice(kind="latest", count=100), inserted)
    assert behind.min() == 0 and behind.max() == 99
    assert np.bincount(behind).argmax() == 0
    uniform = np.bincount(drawn(KeyChoice(kind="uniform", count=50)), minlength=50)
    assert len(uniform) == 50 and (np.abs(uniform - 4000) < 5 * np.sqrt(4000)).all()
    assert drawn(KeyChoice(kind="sequential", count=3), np.zeros(7, np.int64)).tolist() == [
        0,
        1,
        2,
        0,
        1,
        2,
        0,
    ]


@given(st.sampled_from(["uniform", "zipfian", "latest"]), st.integers(1, 30), st.integers(0, 2**32))
def test_only_keys_that_exist_are_drawn(kind: Any, count: int, seed: int) -> None:
    """However many keys there are and are added, a number is below the count of that moment."""
    inserted = np.cumsum(np.random.default_rng(seed).integers(0, 2, 100))
    numbers = drawn(KeyChoice(kind=kind, count=count), inserted, seed)
    assert (numbers >= 0).all() and (numbers < count + inserted).all()


def test_sizes_are_those_of_their_distribution() -> None:
    """Sizes at even quantiles: a fixed one, and each of a range equally often."""
    at = (np.arange(1000) + 0.5) / 1000
    assert set(value_sizes(7, at).tolist()) == {7}
    assert np.bincount(value_sizes(UniformBytes(low=2, high=6), at))[2:].tolist() == [200] * 5


MIXED = Workload(
    operations=20_000,
    keys=KeyChoice(kind="zipfian", count=500),
    value_bytes=UniformBytes(low=1, high=64),
    mix=Mix(put=0.3, insert=0.1, read=0.2, scan=0.05, read_modify_write=0.1, delete=0.05, transaction=0.2),
    seed=5,
)


def test_a_mix_has_its_shares_and_its_shapes() -> None:
    """Count groups by shape: shares of calls as asked for, scans read neighbours, a changed key was read before."""
    stream = MIXED.stream()
    assert 20_000 <= len(stream) < 20_000 + 100
    shapes = {"single": 0, "scan": 0, "modify": 0, "transaction": 0}
    known = 500
    for first, end in stream.bounds():
        kinds, keys = stream.kinds[first:end].tolist(), stream.keys[first:end]
        numbers = [int(key.removeprefix(b"user")) for key in keys]
        if end - first == 1:
            shapes["single"] += 1
        elif kinds == [READ, Kind.PUT]:
            shapes["modify"] += 1
            assert keys[0] == keys[1]
        elif set(kinds) == {READ}:
            shapes["scan"] += 1
            assert {(b - a) % known for a, b in pairwise(numbers)} <= {1}
        else:
            shapes["transaction"] += 1
            assert kinds == [Kind.PUT] * 4
        known = max(known, max(numbers) + 1)
    calls = sum(shapes.values())
    # One scan in a hundred reads one key, and looks like a read.
    for shape, share in (("single", 0.65), ("scan", 0.05), ("modify", 0.1), ("transaction", 0.2)):
        assert abs(shapes[shape] - share * calls) < 5 * np.sqrt(share * calls) + 5
    assert known > 500 + 0.08 * calls
    sizes = {len(value) for value in stream.values if value is not None}
    assert min(sizes) == 1 and max(sizes) == 64
    assert all((v is not None) == (k == Kind.PUT) for v, k in zip(stream.values, stream.kinds, strict=True))


def test_the_seed_fixes_the_operations_and_the_arrivals() -> None:
    """The same seed gives the same bytes and times, another one others; the digest of one seed is unchanged."""
    again = Workload(**{**vars(MIXED), "name": ""})
    other = Workload(**{**vars(MIXED), "seed": 6, "name": ""})
    assert MIXED.stream().digest() == again.stream().digest() != other.stream().digest()
    loop = OpenLoop(rate=1000)
    assert loop.due_ns(50, 5).tolist() == loop.due_ns(50, 5).tolist() != loop.due_ns(50, 6).tolist()


def test_arrivals_have_their_rate() -> None:
    """Poisson arrivals come at the rate, with gaps as uneven as exponential ones; fixed ones are equally far apart."""
    due = OpenLoop(rate=500).due_ns(100_000, 1)
    gaps = np.diff(due) / 1e9
    assert (gaps >= 0).all()
    assert gaps.mean() == pytest.approx(1 / 500, rel=0.02)
    assert gaps.std() == pytest.approx(1 / 500, rel=0.02)
    assert OpenLoop(rate=500, process="fixed").due_ns(4, 1).tolist() == [2e6, 4e6, 6e6, 8e6]


@pytest.mark.parametrize("letter", YCSB)
def test_the_presets_are_those_of_ycsb(letter: str) -> None:
    """Each preset: its shares of reads and changes, 1,000-byte values, every key put before, its key choice."""
    workload = ycsb(letter.lower(), key_count=300, operations=3000, seed=1)
    assert (workload.name, workload.operations, workload.sizes) == (f"YCSB {letter}", 3000, 1000)
    assert workload.key_choice.kind == ("latest" if letter == "D" else "zipfian")
    stream, loaded = workload.stream(), workload.preload_stream()
    assert loaded is not None
    assert len(set(loaded.keys)) == len(loaded) == 300
    reads = float((stream.kinds == READ).mean())
    assert reads == pytest.approx({"A": 0.5, "C": 1.0, "E": 0.999, "F": 2 / 3}.get(letter, 0.95), abs=0.04)
    if letter not in "DE":
        assert set(stream.keys) <= set(loaded.keys)


REFUSED: dict[str, Any] = {
    "tasks": lambda: Workload(tasks=-1),
    "seed": lambda: Workload(seed=-1),
    "arrival": lambda: Workload(arrival="open"),  # type: ignore[arg-type]
    "rate": lambda: OpenLoop(rate=0),
    "process": lambda: OpenLoop(rate=1, process="bursts"),  # type: ignore[arg-type]
    "keys": lambda: Workload(keys="normal"),
    "keys of a number": lambda: Workload(keys=7),  # type: ignore[arg-type]
    "count": lambda: KeyChoice(count=0),
    "theta": lambda: KeyChoice(theta=0),
    "value_bytes": lambda: Workload(value_bytes=-1),
    "value_bytes of text": lambda: Workload(value_bytes="100"),  # type: ignore[arg-type]
    "value_bytes low": lambda: UniformBytes(low=3, high=2),
    "mix": lambda: Mix(put=0.5),
    "mix of a dict": lambda: Workload(mix={"put": 1}),  # type: ignore[arg-type]
    "read": lambda: Mix(read=1.5),
    "transaction_size": lambda: Mix(put=1.0, transaction_size=0),
    "source": lambda: Workload(source=MIXED.stream(), keys="uniform"),
    "preload": lambda: Workload(preload=True),
    "letter": lambda: ycsb("G"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_is_refused(what: str) -> None:
    """Each wrong option, and options that do not go together: an OptionsError that names the option."""
    with pytest.raises(OptionsError) as found:
        REFUSED[what]()
    assert found.value.option == what.split(maxsplit=1)[0]


def test_a_workload_tells_itself_in_plain_values() -> None:
    """The description of a workload holds its distributions by name and number, for the record of a run."""
    told = Workload(**{**vars(MIXED), "arrival": OpenLoop(rate=5.0), "name": "mine"}).as_dict()
    assert told["keys"] == {"kind": "zipfian", "count": 500, "theta": 0.99, "scrambled": True}
    assert told["arrival"] == {"rate": 5.0, "process": "poisson"}
    assert told["mix"]["scan"] == 0.05 and told["value_bytes"] == {"low": 1, "high": 64}
    assert Workload(source=MIXED.stream()).as_dict()["source"] == f"{len(MIXED.stream()):,} operations"
