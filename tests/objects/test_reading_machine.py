"""Random histories of two writers over a store with faults, read by a reader and a delta reader meanwhile."""

from __future__ import annotations

from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, rule

from tests.support.machines import that_did
from walkit.errors import CommitFailedError, LogPoisonedError, ObjectThrottledError, ObjectUnknownError
from walkit.log.wal import WriteAheadLog
from walkit.objects.open import open_object_writer
from walkit.objects.view import ObjectEnd
from walkit.read.reader import LogReader
from walkit.replication import DeltaReader
from walkit.storage.object_memory import MemoryObjectStore, ObjectFault, ObjectRequest

NOBODY = "127.0.0.1:1"
WAIT_S = 20.0
FAULTS = {
    "lost answer": ObjectFault(after=ObjectUnknownError),
    "never done": ObjectFault(before=ObjectUnknownError),
    "late": ObjectFault(late=True),
    "throttled": ObjectFault(before=ObjectThrottledError),
}
ANY_FAULT = st.sampled_from(["", *FAULTS])
Row = tuple[bytes | None, bytes | None]


class ReadingMachine(RuleBasedStateMachine):
    """Two writers take the log from each other; each answer of the store may be one of FAULTS."""

    did: Counter[str] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.fault = ""
        self.appended = 0
        self.acked: dict[int, Row] = {}
        self.seen: dict[int, Row] = {}
        self.states: list[tuple[int, dict[bytes, bytes | None]]] = []
        self.store = MemoryObjectStore()
        self.clients = [self.store.client(self.plan) for _ in range(2)]
        self.writers: list[WriteAheadLog] = [open_object_writer(client) for client in self.clients]
        self.reader = LogReader(ObjectEnd(self.store.client()))
        self.delta = DeltaReader(self.store.client(), NOBODY, insecure=True).start()

    def plan(self, request: ObjectRequest) -> ObjectFault | None:
        """Return the fault that waits, for a put."""
        if not self.fault or not request.method.startswith("put"):
            return None
        name, self.fault = self.fault, ""
        self.did[name] += 1
        return FAULTS[name]

    @rule(which=st.integers(0, 1), fault=ANY_FAULT)
    def reopen(self, which: int, fault: str) -> None:
        """Open one writer again, perhaps with a fault: it fences the other."""
        self.fault = fault
        self.writers[which].close()
        self.writers[which] = open_object_writer(self.clients[which])

    @rule(which=st.integers(0, 1), key=st.sampled_from([b"a", b"b", b"c"]), fault=ANY_FAULT)
    def append(self, which: int, key: bytes, fault: str) -> None:
        """Append a record by a writer that may be fenced, perhaps with a fault."""
        self.fault = fault
        self.appended += 1
        value = b"%d" % self.appended
        try:
            lsn = self.writers[which].append(value, key).first_lsn
        except (CommitFailedError, LogPoisonedError):
            self.did["fenced"] += 1
        else:
            assert lsn not in self.acked
            self.acked[lsn] = (key, value)

    @rule(which=st.integers(0, 1))
    def land(self, which: int) -> None:
        """Do the late puts of a writer now."""
        self.clients[which].land()

    @rule()
    def read(self) -> None:
        """Read what follows: no gap, and all that is acknowledged."""
        for record in self.reader.read(len(self.seen) + 1):
            assert record.lsn == len(self.seen) + 1
            self.seen[record.lsn] = (record.key, record.value)
            self.did["read"] += 1
        assert self.acked.items() <= self.seen.items()

    @rule()
    def wait(self) -> None:
        """Wait until the delta reader has all that is acknowledged."""
        if self.acked:
            self.delta.wait_for(max(self.acked), WAIT_S)
            self.states.append((self.delta.applied_lsn, dict(self.delta.state)))
            self.did["delta"] += 1

    def teardown(self) -> None:
        """Compare what was read with the final history."""
        self.fault = ""
        self.read()
        self.wait()
        for close in (self.delta.stop, self.reader.close, *(log.close for log in self.writers)):
            close()
        with open_object_writer(self.store.client()) as log:
            final = {record.lsn: (record.key, record.value) for record in log.read()}
        assert list(final) == list(range(1, len(final) + 1))
        assert self.acked.items() <= final.items() and self.seen.items() <= final.items()
        for lsn, state in self.states:
            assert state == {key or b"": value for key, value in list(final.values())[:lsn]}


ReadingMachine.TestCase.settings = settings(max_examples=20, stateful_step_count=20, deadline=None)
# Slow: each fault pauses a writer, and a delta reader waits for its polls, some 5 s in all.
TestReading = pytest.mark.slow(that_did(ReadingMachine, *FAULTS, "fenced", "read", "delta"))
