"""Which keys, which sizes, which operations: the distributions of a workload, drawn by numpy, fixed by their seed.

Key choices are those of YCSB (Cooper et al., SoCC 2010). Its zipfian generator is Gray's approximation (SIGMOD 1994);
here the inverse of the exact distribution function is looked up, which is as fast for an array. Scrambling is YCSB's:
the rank goes through the 64-bit FNV-1 hash, so that popular keys are not neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from walkit._internal.arguments import check_bool, check_choice, check_number, check_whole, refuse

Int64s: TypeAlias = npt.NDArray[np.int64]

KEY_COUNT_MAX = 100_000_000
VALUE_BYTES_MAX = 1 << 26
SHARES = ("put", "insert", "read", "scan", "read_modify_write", "delete", "transaction")

_FNV_OFFSET = np.uint64(0xCBF29CE484222325)
_FNV_PRIME = np.uint64(1099511628211)


@dataclass(frozen=True, kw_only=True)
class KeyChoice:
    """Which of `count` keys an operation is on. Inserts add keys after them."""

    kind: Literal["uniform", "zipfian", "latest", "sequential"] = "uniform"
    """zipfian: the key of rank r with probability r**-theta / zeta; latest: so, counted back from the newest key."""
    count: int = 100_000
    theta: float = 0.99
    """zipfian and latest: how uneven; 0.99 is YCSB's."""
    scrambled: bool = True
    """zipfian: ranks are hashed, so that popular keys lie anywhere; two ranks may then share a key, as in YCSB."""

    def __post_init__(self) -> None:
        check_choice(self.kind, ("uniform", "zipfian", "latest", "sequential"), "keys")
        check_whole(self.count, "count", 1, KEY_COUNT_MAX)
        check_number(self.theta, "theta", 0, 10, above=True)
        check_bool(self.scrambled, "scrambled")

    def numbers(self, rng: np.random.Generator, inserted: Int64s) -> Int64s:
        """Draw a key number for each operation; `inserted` says how many keys were added before it."""
        present = self.count + inserted
        if self.kind == "sequential":
            return np.arange(len(inserted), dtype=np.int64) % present
        uniform = rng.random(len(inserted))
        if self.kind == "uniform":
            return np.minimum((uniform * present).astype(np.int64), present - 1)
        ranks = np.searchsorted(zipf_distribution(self.count, self.theta), uniform, side="right")
        ranks = np.minimum(ranks, self.count - 1).astype(np.int64)
        if self.kind == "latest":
            return present - 1 - ranks
        return fnv_hash(ranks) % present if self.scrambled else ranks


@lru_cache(maxsize=4)
def zipf_distribution(count: int, theta: float) -> npt.NDArray[np.float64]:
    """Return P(rank <= r) for the ranks 0 to count - 1."""
    shares = np.cumsum(np.arange(1, count + 1, dtype=np.float64) ** -theta)
    shares /= shares[-1]
    shares.setflags(write=False)
    return shares


def fnv_hash(numbers: Int64s) -> Int64s:
    """Return YCSB's `fnvhash64` of each number: FNV-1 over its 8 bytes, lowest first, its absolute value as int64."""
    hashed = np.full(numbers.shape, _FNV_OFFSET, np.uint64)
    rest = numbers.astype(np.uint64)
    for _ in range(8):
        hashed = (hashed ^ (rest & np.uint64(0xFF))) * _FNV_PRIME
        rest >>= np.uint64(8)
    signed = np.abs(hashed.view(np.int64))
    # The one int64 without an absolute value stays negative; YCSB has the same corner.
    return np.where(signed < 0, 0, signed)


@dataclass(frozen=True, kw_only=True)
class UniformBytes:
    """Value sizes from `low` to `high` bytes, both included, all equally likely."""

    low: int
    high: int

    def __post_init__(self) -> None:
        check_whole(self.high, "value_bytes", 0, VALUE_BYTES_MAX)
        check_whole(self.low, "value_bytes", 0, self.high)


ValueBytes: TypeAlias = "int | UniformBytes"


def check_value_bytes(value: object) -> None:
    """Refuse a value that is neither a size nor a distribution of sizes."""
    if not isinstance(value, UniformBytes):
        check_whole(value, "value_bytes", 0, VALUE_BYTES_MAX)


def value_sizes(value_bytes: ValueBytes, at: npt.NDArray[np.float64]) -> Int64s:
    """Return the sizes at these quantiles (0 <= q < 1) of the distribution."""
    if isinstance(value_bytes, int):
        return np.full(len(at), value_bytes, np.int64)
    width = value_bytes.high - value_bytes.low + 1
    return value_bytes.low + (at * width).astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class Mix:
    """Shares of the calls of a workload; they add up to 1.

    A put sets an existing key, an insert a new one. A scan reads 1 to `scan_max` keys of consecutive numbers, one by
    one, because a Store has no order of keys. A transaction puts `transaction_size` keys, all or nothing.
    """

    put: float = 0.0
    insert: float = 0.0
    read: float = 0.0
    scan: float = 0.0
    read_modify_write: float = 0.0
    delete: float = 0.0
    transaction: float = 0.0
    transaction_size: int = 4
    scan_max: int = 100

    def __post_init__(self) -> None:
        for name in SHARES:
            check_number(getattr(self, name), name, 0, 1)
        total = sum(self.shares())
        if abs(total - 1) >= 1e-9:
            refuse("mix", total, "the shares of a mix add up to 1")
        for name in ("transaction_size", "scan_max"):
            check_whole(getattr(self, name), name, 1, 100_000)

    def shares(self) -> tuple[float, ...]:
        """Return the shares in the order of SHARES."""
        return tuple(getattr(self, name) for name in SHARES)

    def as_dict(self) -> dict[str, Any]:
        """Return the mix as plain values."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}


PUTS = Mix(put=1.0)
