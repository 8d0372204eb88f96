"""A cluster of processes under faults: semi-synchronous, by TLS and token, over proxies, with a cascade and readers.

A primary appends from two threads, and an append is acknowledged when two of its three replicas have it. Each replica
serves, too; one of them has a replica of its own, the leaf. Two delta readers follow the primary's folder. Each
connection goes over a proxy of the test's process. All data is in the folders: so after each fault the world can ask
whether what was acknowledged is there.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import walkit
from tests.replication.certificates import Authority
from tests.replication.processes import Processes
from tests.replication.proxy import TcpProxy
from tests.support.imports import bytes_of
from tests.support.ports import free_address
from walkit.errors import CommitFailedError
from walkit.format.file_names import BOOTSTRAP_PREFIX
from walkit.recovery.log_scan import read_durable_slot
from walkit.replication import (
    ClientTLS,
    DeltaReader,
    PeerError,
    Primary,
    Replica,
    RewindError,
    ServerTLS,
    promote,
    rejoin,
)
from walkit.replication.core.backoff import Backoff
from walkit.segments.consumer_files import drop_claim
from walkit.segments.manifest_store import load_manifest
from walkit.state.snapshot import read_snapshot, snapshot_lsns
from walkit.state.table import KeyedTable
from walkit.storage import FileStorage, Storage
from walkit.store import Store

OPTIONS = walkit.LogOptions(segment_bytes=64 * 1024, frame_bytes_max=16 * 1024, idle_marker_ms=5)
TOKEN = "of the chaos"
REPLICAS = 3
ACK_REPLICAS = 2
WAIT_S = 180.0
"""A machine that does other things too, and a reader whose polls are held back."""
CHANGES_MAX = 100
"""A replica kills itself before one of so many changes of its folder: a bootstrap has some sixty."""
FAULTS = {
    "kill a replica": 4,
    "kill a replica in a change": 4,
    "trim past the replicas": 2,
    "kill the primary": 2,
    "kill a reader": 3,
    "kill all": 1,
    "cut a link": 3,
    "lose what is sent": 2,
    "flip bits": 2,
    "stop for a while": 2,
    "fail over": 4,
}
"""The faults, and the weight of each in the draw."""


class Ending:
    """Waits for SIGTERM. A signal that came while it was blocked counts."""

    def __init__(self) -> None:
        # No Event: its lock is not recursive, and a handler that sets it while this thread is in `wait` would deadlock.
        self.over = False
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "over", True))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))


def serve_chaos(path: str, address: str, security: list[str], ledger: str) -> None:
    """Append from two threads until SIGTERM; write each acknowledged record to a file of lines. "": serve alone."""
    ending, (certificate, key, _) = Ending(), security
    tls = ServerTLS(certificate=certificate, key=key)
    if not ledger:
        with Primary(path, address, tls, TOKEN):
            while not ending.over:
                time.sleep(0.02)
        return
    lines = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def work(number: int) -> None:
        for count in range(1 << 30):
            name = b"%d-%d-%d" % (os.getpid(), number, count)
            with suppress(CommitFailedError):  # replicas were late: nothing was promised
                result = store.put(b"%d" % (count % 50), name + b" " * (count * 37 % 1500))
                os.write(lines, b"%d %b\n" % (result.first_lsn, name))
            time.sleep(0.002)

    how: dict[str, Any] = {"ack_replicas": ACK_REPLICAS, "ack_timeout_ms": 500}
    with (
        Store.open(path, options=OPTIONS) as store,
        Primary(store, address, tls, TOKEN, **how),
    ):
        for number in range(2):
            threading.Thread(target=work, args=(number,), daemon=True).start()
        while not ending.over:
            time.sleep(0.02)


def follow_chaos(storage: Storage, path: str, source: str, address: str, security: list[str]) -> None:
    """Rejoin and follow a primary, and serve what is imported, until SIGTERM; an error that lasts ends the process."""
    ending, (certificate, key, ca) = Ending(), security
    tls, own = ClientTLS(ca=ca), ServerTLS(certificate=certificate, key=key)
    how: dict[str, Any] = {"tls": tls, "token": TOKEN, "options": OPTIONS, "backoff": Backoff(5.0, 100.0)}
    how |= {"rewind": True, "force_rewind": True}
    while not ending.over:
        if Path(path, "manifest").exists():
            with suppress(PeerError):  # the primary is away: the replica rewinds by itself later
                rejoin(path, source, force=True, token=TOKEN, tls=tls)
        with (
            suppress(
                RewindError
            ),  # what is left after a trim cannot be cut back: it rejoins in an empty folder
            Replica(storage, source, **how) as replica,
            Primary(replica, address, own, TOKEN),
        ):
            while not ending.over:
                time.sleep(0.02)
                if replica.status().state == "failed":
                    replica.wait_for(1 << 62, 0)  # raises why


def read_chaos(log: str, source: str, own: str, security: list[str]) -> None:
    """Follow a log by delta poll with many checkpoints, until SIGTERM."""
    ending, tls = Ending(), ClientTLS(ca=security[2])
    with DeltaReader(
        log,
        source,
        checkpoint=own,
        checkpoint_s=0.05,
        lease_s=30,
        backoff=Backoff(5, 100),
        token=TOKEN,
        tls=tls,
    ) as reader:
        while not ending.over:
            time.sleep(0.02)
            if reader.error is not None:
                raise reader.error


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait long until something holds."""
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, f"waited {WAIT_S} s for: {what}"
        time.sleep(0.01)


def epoch_and_end(node: Path) -> tuple[int, int]:
    """The number of a log's last epoch, and its last durable LSN; (0, 0) before its manifest."""
    if not (node / "manifest").exists():
        return 0, 0
    storage = FileStorage(str(node))
    manifest, slot = load_manifest(storage), read_durable_slot(storage)
    number = manifest.lineage[-1].number if manifest.lineage else 0
    return number, max(slot.lsn, manifest.end.last_lsn)


class Chaos:
    """One cluster, made from a seed. `run` does what the module says; `done` counts the faults, `tally` the kills."""

    def __init__(self, folder: Path, seed: int, started: Processes, stack: ExitStack) -> None:
        self.chance, self.folder, self.started = random.Random(seed), folder, started
        self.done: Counter[str] = Counter()
        self.tally = Counter(kills=0, bootstrapping=0, trims=0)
        self.past: dict[int, tuple[bytes, bytes]] = {}
        """Keys and values of records that were trimmed."""
        authority = Authority(folder / "ca")
        self.security = [*map(str, authority.issue()), str(authority.ca)]
        self.ledger = folder / "ledger"
        self.ledger.touch()
        self.primary, *self.replicas = [folder / f"node{number}" for number in range(REPLICAS + 1)]
        self.leaf, self.readers = folder / "leaf", [folder / "reader0", folder / "reader1"]
        self.addresses = {node: free_address() for node in (self.primary, *self.replicas, self.leaf)}
        self.proxies = {
            node: stack.enter_context(TcpProxy(self.addresses[self.primary], seed=seed))
            for node in (*self.addresses, *self.readers)
        }
        self.living: dict[Path, int] = {}
        self.doomed = set[Path]()
        """Replicas that will kill themselves."""
        self._aim()
        self._start_all()
        self._progress("the first acknowledgement")

    def run(self, faults: int) -> None:
        """Do so many faults; after each one what is appended is acknowledged again. Then all end equal."""
        for _ in range(faults):
            (fault,) = self.chance.choices([*FAULTS], [*FAULTS.values()])
            self._do(fault)
            self.done[fault] += 1
            self._progress(f"an acknowledgement after: {fault}, of {dict(self.done)}")
        self._finish()

    def _do(self, fault: str) -> None:
        chance = self.chance
        proxy = chance.choice([*self.proxies.values()])
        time.sleep(chance.uniform(0.0, 0.3))
        if fault == "kill a replica":
            self._restart(chance.choice((*self.replicas, self.leaf)))
        elif fault == "kill a replica in a change":
            self._restart(chance.choice((*self.replicas, self.leaf)), chance.randrange(1, CHANGES_MAX))
        elif fault == "trim past the replicas":
            self._trim()
        elif fault == "kill the primary":
            self._restart(self.primary)
        elif fault == "kill a reader":
            self._restart(chance.choice(self.readers))
        elif fault == "kill all":
            for node in self.living:
                self._kill(node)
            self._start_all()
        elif fault == "cut a link":
            proxy.cut()
        elif fault == "stop for a while":
            pid = self.living[chance.choice([*self.living])]
            os.kill(pid, signal.SIGSTOP)
            time.sleep(chance.uniform(0.0, 1.0))
            os.kill(pid, signal.SIGCONT)
        elif fault == "fail over":
            self._fail_over()
        else:
            proxy.trouble = "hole" if fault == "lose what is sent" else "flip"
            time.sleep(chance.uniform(0.0, 0.5))
            proxy.trouble = ""
            proxy.cut()

    def _fail_over(self) -> None:
        """Kill the primary and some replicas, promote the furthest of any two; the old primary rejoins."""
        self._kill(self.primary)
        for node in self.chance.sample(self.replicas, self.chance.randrange(REPLICAS)):
            self._kill(node)
            self.living[node] = self._begin(node)
        looked_at = self.chance.sample(self.replicas, REPLICAS - ACK_REPLICAS + 1)
        for node in (*self.replicas, *self.readers, self.leaf):
            self._kill(node)
        promised = self._promised()
        for out in self.replicas:  # any two have all of it
            self._check(promised, self._furthest([node for node in self.replicas if node != out]))
        chosen = self._furthest(looked_at)
        promote(chosen)
        self.replicas = [node for node in (*self.replicas, self.primary) if node != chosen]
        self.primary = chosen
        self.readers = [self.folder / f"{own.name}+" for own in self.readers]  # of another folder now
        self.proxies |= dict(zip(self.readers, [*self.proxies.values()][-2:], strict=True))
        self._aim()
        self._start_all()

    def _trim(self) -> None:
        """Drop all records of the log, needed or not: who is back gets a snapshot; one of them dies meanwhile."""
        for node in self.living:
            self._kill(node)
        self.past = self._records(self.primary)
        with Store.open(self.primary, options=OPTIONS) as store:
            for fact in store.log.claims():
                drop_claim(FileStorage(str(self.primary)), fact.name)
            assert store.checkpoint().low_watermark == store.log.acked_lsn
        self._start_all()
        self._restart(self.chance.choice(self.replicas), self.chance.randrange(1, CHANGES_MAX))
        self.tally["trims"] += 1

    def _aim(self) -> None:
        """Let each proxy lead to the primary, and the leaf's to a replica."""
        for proxy in self.proxies.values():
            proxy.retarget(self.addresses[self.primary])
        self.proxies[self.leaf].retarget(self.addresses[self.chance.choice(self.replicas)])

    def _start_all(self) -> None:
        self.living = {self.primary: self._begin(self.primary)}
        until((self.primary / "manifest").exists, "the log")
        for node in (*self.replicas, self.leaf, *self.readers):
            self.living[node] = self._begin(node)

    def _begin(self, node: Path, nth: int = 0) -> int:
        """Start a process; a replica may kill itself before its nth change, 0 for never."""
        source, security = self.proxies[node].address, self.security
        if node == self.primary:
            return self._serve(str(self.ledger))
        if node in self.readers:
            return self.started.start("read chaos", str(self.primary), source, str(node), security)
        return self.started.start("follow chaos", str(node), nth, source, self.addresses[node], security)

    def _serve(self, ledger: str) -> int:
        address = self.addresses[self.primary]
        return self.started.start("serve chaos", str(self.primary), address, self.security, ledger)

    def _kill(self, node: Path) -> None:
        self.started.kill(self.living[node])
        self._note_kill(node)

    def _note_kill(self, node: Path) -> None:
        self.doomed.discard(node)
        self.tally["kills"] += 1
        self.tally["bootstrapping"] += any(node.glob(f"{BOOTSTRAP_PREFIX}*"))
        if node in self.readers:
            self._check_checkpoints(node)

    def _restart(self, node: Path, nth: int = 0) -> None:
        self._kill(node)
        self.living[node] = self._begin(node, nth)
        if nth:
            self.doomed.add(node)

    def _progress(self, what: str) -> None:
        """Wait until something new is acknowledged, and no process has ended by itself."""
        before = self.ledger.stat().st_size

        def is_further() -> bool:
            for node, pid in self.living.items():
                status = self.started.status(pid)
                if status == signal.SIGKILL and node in self.doomed:
                    self._note_kill(node)
                    self.living[node] = self._begin(node)
                    continue
                assert status is None, f"{node.name} ended with status {status}, before {what}"
            return self.ledger.stat().st_size > before

        until(is_further, what)

    def _promised(self) -> dict[int, bytes]:
        lines = self.ledger.read_bytes().split(b"\n")[:-1]
        return {int(lsn): value for lsn, value in map(bytes.split, lines)}

    def _furthest(self, nodes: list[Path]) -> Path:
        """The replica whose last epoch is the newest, and of those the longest."""
        return max(nodes, key=epoch_and_end)

    def _check(self, promised: dict[int, bytes], node: Path) -> None:
        there = {lsn: value.rstrip() for lsn, (_, value) in self._records(node).items()}
        lost = {lsn: value for lsn, value in promised.items() if there.get(lsn) != value}
        assert not lost, f"{node} has lost {len(lost)} of {len(promised)}: {sorted(lost)[:5]}"

    def _check_checkpoints(self, own: Path) -> None:
        """Compare each snapshot of a reader that is dead with the log's records up to there."""
        storage, records = FileStorage(str(own)), self._records(self.primary)
        for lsn in snapshot_lsns(storage) if own.exists() else ():
            read_snapshot(storage, lsn, table := KeyedTable())
            assert lsn <= max(records)
            assert table.to_dict() == dict(records[each] for each in range(1, lsn + 1))

    def _records(self, node: Path) -> dict[int, tuple[bytes, bytes]]:
        """The key and value of each record of a log, those that were trimmed included."""
        with walkit.open(node, mode="r") as log:
            return self.past | {each.lsn: (each.key or b"", each.value or b"") for each in log.read()}

    def _finish(self) -> None:
        """Without faults all nodes have the primary's frames, and the readers its state."""
        for node in self.doomed.copy():
            self._restart(node)
        self.started.end(self.living[self.primary])
        self.living[self.primary] = self._serve("")
        end = load_manifest(FileStorage(str(self.primary))).end
        followers = (*self.replicas, self.leaf)
        for node in followers:
            until(lambda: epoch_and_end(node)[1] == end.last_lsn, node.name)  # noqa: B023
        for own in self.readers:
            until(lambda: end.last_lsn in snapshot_lsns(FileStorage(str(own))), own.name)  # noqa: B023
            self._check_checkpoints(own)
        for pid in reversed(self.living.values()):
            self.started.end(pid)
        self._check(self._promised(), self.primary)
        for node in followers:
            theirs, ours = (bytes_of(FileStorage(str(each))) for each in (node, self.primary))
            size = min(len(theirs), len(ours))  # a replica may have been spared a trim
            assert size and theirs[-size:] == ours[-size:], node
            assert walkit.verify(node).ok
