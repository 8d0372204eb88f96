"""A generated stream of operations: made whole before it is driven, so that making it is never measured."""

from __future__ import annotations

import numpy as np

from walkit.record import Kind
from walkit.workload.distributions import SHARES, Int64s, KeyChoice, Mix, ValueBytes, value_sizes
from walkit.workload.operations import READ, Mask, OperationStream

VALUES_MAX, VALUES_MIN, VALUES_BYTES = 4096, 16, 64 << 20
"""Most and fewest values that differ in a stream, and about how many bytes they take together.

Operations share them, so that a stream of any length fits into memory.
"""

PUT_CALL, INSERT, READ_CALL, SCAN, READ_MODIFY_WRITE, DELETE_CALL, TRANSACTION = range(len(SHARES))


def generated_operations(
    operations: int, *, keys: KeyChoice, value_bytes: ValueBytes, mix: Mix, seed: int
) -> OperationStream:
    """Return `operations` operations, or a few more where the last call has several: the same ones for the same seed.

    Each call is a group, and any writer may take it: keys are shared by writers, as in YCSB, so the order of two
    changes of a key by two writers is not fixed.
    """
    rng = np.random.default_rng(seed)
    calls = rng.choice(len(SHARES), size=operations, p=np.array(mix.shares()) / sum(mix.shares()))
    sizes = np.ones(operations, np.int64)
    sizes[calls == SCAN] = rng.integers(1, mix.scan_max + 1, int((calls == SCAN).sum()))
    sizes[calls == READ_MODIFY_WRITE] = 2
    sizes[calls == TRANSACTION] = mix.transaction_size
    taken = int(np.searchsorted(np.cumsum(sizes), operations)) + 1
    calls, sizes = calls[:taken], sizes[:taken]

    groups = np.repeat(np.arange(taken), sizes)
    call = calls[groups]
    first = np.repeat(np.cumsum(sizes) - sizes, sizes)
    within = np.arange(len(groups)) - first
    new = np.where(call == INSERT, 1, 0)
    inserted = np.cumsum(new) - new
    numbers = keys.numbers(rng, inserted)
    together = (call == SCAN) | (call == READ_MODIFY_WRITE)
    step = np.where(call == SCAN, within, 0)
    numbers = np.where(together, (numbers[first] + step) % (keys.count + inserted), numbers)
    numbers = np.where(call == INSERT, keys.count + inserted, numbers)

    reads = (call == READ_CALL) | (call == SCAN) | ((call == READ_MODIFY_WRITE) & (within == 0))
    kinds = np.where(reads, READ, np.where(call == DELETE_CALL, Kind.DELETE, Kind.PUT)).astype(np.int8)
    return OperationStream(
        kinds=kinds,
        keys=key_names(numbers),
        values=_values(rng, value_bytes, kinds == Kind.PUT),
        times_us=groups,
        groups=groups,
        routes=groups.astype(np.uint32),
        numbers=np.arange(len(groups)),
    )


def key_names(numbers: Int64s) -> list[bytes]:
    """Return the key of each number, 16 bytes: `user` and twelve digits."""
    distinct, index = np.unique(numbers, return_inverse=True)
    names = [b"user%012d" % number for number in distinct.tolist()]
    return [names[i] for i in index.tolist()]


def _values(rng: np.random.Generator, value_bytes: ValueBytes, wanted: Mask) -> list[bytes | None]:
    """Return a value for each operation that has one. Sizes are quantiles of the distribution, bytes are random."""
    probe = value_sizes(value_bytes, np.linspace(0, 1, 1000, endpoint=False))
    count = int(np.clip(VALUES_BYTES // (probe.mean() + 1), VALUES_MIN, VALUES_MAX))
    sizes = value_sizes(value_bytes, (np.arange(count) + 0.5) / count)
    # Slices of one random block: many values share bytes, but nothing repeats within one.
    block = rng.bytes(int(sizes.max()) + count)
    pool = [block[at : at + size] for at, size in enumerate(sizes.tolist())]
    index = np.where(wanted, rng.integers(0, count, len(wanted)), -1).tolist()
    return [None if i < 0 else pool[i] for i in index]
