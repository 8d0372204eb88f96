"""A delta reader of a world: the shell of the real poller and replayer cores, with a claim and checkpoints."""

from __future__ import annotations

import errno

from walkit.errors import GapError, StorageError
from walkit.replication.core.backoff import Backoff
from walkit.replication.delta.messages import DeltaEnd, PollAnswer, PollRefusal, PollRequest
from walkit.replication.delta.poller import DeltaPoller
from walkit.replication.delta.replayer import (
    ApplyRange,
    DeltaReplayer,
    EndReplay,
    LoadRange,
    ReplayLimits,
    ReplayStep,
)
from walkit.replication.protocol.failures import ProtocolError
from walkit.simulate.world_clock import Act, Alarm, Process
from walkit.simulate.world_disk import LOG_ID
from walkit.simulate.world_faults import PRIMARY, random_of
from walkit.simulate.world_log import Ledger, State, Violation, rows_of
from walkit.simulate.world_network import Network
from walkit.simulate.world_primary import Primary

LIMITS = ReplayLimits(loads_max=3, load_bytes=1500, bytes_max=6000, parts_max=8, tries_max=3)
CLAIM_LEASE_MS = 500.0
CHECKPOINT_MS = 100.0
POLL_TIMEOUTS_MS = (40.0, 150.0, 150.0)
"""The shortest ends before a poll without news is answered."""
VERSIONS = (*(2,) * 14, 1, 0)
"""Of the protocol, one for each poller."""
RETRY_MS = 30.0


class Reader:
    """One delta reader's process."""

    def __init__(
        self, process: Process, network: Network, primary: Primary, ledger: Ledger, seed: int
    ) -> None:
        self.name, self.process = process.name, process
        self.saved = State()
        """Its checkpoint, which outlives the process."""
        self.state = State()
        self.storage_fails = 0
        """How many faults keep it from the shared storage."""
        self.replayer: DeltaReplayer | None = None
        self._network, self._primary, self._ledger = network, primary, ledger
        self._random = random_of(seed, process.name)
        self._poller = self._new_poller()
        self._calls: dict[int, PollRequest] = {}
        self._numbers = 0
        self._generation = 0
        """Counts replays: what a given-up one has asked for comes to nothing."""
        self._loads: dict[int, bool] = {}
        """By the number of each load of this replay, whether it is being read."""
        self._alarm = self._replay_alarm = Alarm(process, lambda: None)

    @property
    def announced_lsn(self) -> int:
        """The LSN up to which it says that everything is applied."""
        return self.replayer.applied.lsn if self.replayer is not None else 0

    @property
    def sessions(self) -> int:
        """How many sessions it has begun with the poller that it has."""
        return self._poller.sessions

    @property
    def _now_ms(self) -> float:
        return self.process.clock.now_ms

    def _count(self, name: str, times: int = 1) -> None:
        self.process.clock.count(name, times)

    def _new_poller(self) -> DeltaPoller:
        backoff = Backoff(5.0, 60.0, self._random.random)
        version, interval_ms = self._random.choice(VERSIONS), self._random.choice((2.0, 8.0, 25.0))
        return DeltaPoller(version=version, interval_ms=interval_ms, backoff=backoff)

    # -- a life of the process

    def start(self) -> None:
        """Begin with the checkpoint."""
        self.process.start()
        self._alarm = Alarm(self.process, self._ask)
        self._replay_alarm = Alarm(self.process, self._tick)
        self._calls.clear()
        self._poller = self._new_poller()
        self.replayer = None
        self.state = self.saved.copy()
        self._begin()
        self.process.after(CHECKPOINT_MS, self._checkpoint)

    def kill(self) -> None:
        """End at once: the state is gone, the checkpoint and the claim remain."""
        if self.process.up:
            self.process.kill()
            self.replayer = None
            self._count("reader crashes")

    def _begin(self) -> None:
        """Claim what is needed and replay from the state's end; from the snapshot where that is gone."""
        self._generation += 1
        self._loads.clear()
        if self.storage_fails:
            self.process.after(RETRY_MS, self._begin)
            return
        disk = self._primary.disk
        if self.state.lsn + 1 < disk.oldest_lsn:
            self._count("begun anew")
            self.state = disk.snapshot.copy()
        if self.saved.lsn + 1 < disk.oldest_lsn:  # a claim on what is gone would be refused
            self.saved = self.state.copy()
        self._claim()
        applied = DeltaEnd(self.state.lsn, self._position_after(self.state.lsn))
        self.replayer = DeltaReplayer(applied, log_id=LOG_ID, limits=LIMITS, chance=self._random.random)
        self._ask()

    def _claim(self) -> None:
        """Claim everything after the checkpoint, from now on for one lease."""
        until_ms = self._now_ms + CLAIM_LEASE_MS
        self._primary.disk.claims[self.name] = (self.saved.lsn + 1, until_ms)

    def _checkpoint(self) -> None:
        """Save the state, then advance the claim; where it has lapsed and something is gone, begin anew."""
        self.process.after(CHECKPOINT_MS, self._checkpoint)
        if self.storage_fails or self.replayer is None:
            self._count("claim stays", self.storage_fails > 0)
            return
        self.saved = self.state.copy()
        if self.saved.lsn + 1 < self._primary.disk.oldest_lsn:
            self._give_up()
        else:
            self._claim()

    def _give_up(self) -> None:
        self.replayer = None
        self._generation += 1
        self._begin()

    def _position_after(self, lsn: int) -> int:
        if not lsn:
            return 0
        frames = self._ledger.frames
        low, high = 0, len(frames) - 1
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if frames[middle].last_lsn < lsn else (low, middle)
        return frames[low].next_position

    # -- polls

    def _ask(self) -> None:
        if self.replayer is None:
            return
        request = self._poller.request(self.replayer.applied, self._now_ms)
        if request is None:
            self._alarm.set(self._poller.wake_at_ms)
            return
        self._numbers += 1
        number = self._numbers
        self._calls[number] = request
        self._send(number, request)
        self.process.after(self._random.choice(POLL_TIMEOUTS_MS), lambda: self._time_out(number, request))

    def _send(self, number: int, request: PollRequest | None) -> None:
        message = (number, request)
        self._network.send(
            self.name, PRIMARY, message, lambda carried: self._primary.feed.hear(self, carried)
        )

    def _time_out(self, number: int, request: PollRequest) -> None:
        """Give a call up; its answer may come all the same."""
        if self._poller.wake_at_ms is None:
            self._poller.failed(request, self._now_ms)
            self._send(number, None)
        self._ask()

    def hear(self, message: object) -> None:
        """Take (number of the call, answer or refusal)."""
        assert isinstance(message, tuple)
        number, answer = message
        request = self._calls.get(number)
        if request is None or self.replayer is None:
            return
        if isinstance(answer, PollRefusal):
            self._poller.refused(request, answer, self._now_ms)
            if self._poller.closed is not None:
                self._poller = self._new_poller()
                self.process.after(RETRY_MS, self._ask)
                return
        else:
            self._answered(request, answer)
        self._ask()

    def _answered(self, request: PollRequest, answer: PollAnswer) -> None:
        assert self.replayer is not None
        try:
            taken = self._poller.answered(request, answer, self._now_ms)
        except ProtocolError as error:
            raise Violation("answers", f"{self.name} was answered what no server answers: {error}") from error
        self._count("late answer", taken is None)
        if taken is not None:
            before = self.replayer.counts.unfit
            steps = self.replayer.answered(taken, self._now_ms)
            self._count("delta unfit", self.replayer.counts.unfit - before)
            self._do(steps)

    # -- replay

    def _tick(self) -> None:
        if self.replayer is not None:
            self._do(self.replayer.tick(self._now_ms))

    def _do(self, steps: list[ReplayStep]) -> None:
        generation = self._generation
        for step in steps:
            if generation != self._generation:
                return
            if isinstance(step, LoadRange):
                took_ms = self._random.choice((1.0, 3.0, 10.0, 40.0))
                self._count("load again", step.number in self._loads)
                self._count("parallel loads", any(self._loads.values()))
                self._loads[step.number] = True
                self._later(took_ms, lambda step=step: self._load(step))  # type: ignore[misc]
            elif isinstance(step, ApplyRange):
                took_ms = self._random.choice((0.1, 1.0, 10.0))
                self._later(took_ms, lambda step=step: self._apply(step))  # type: ignore[misc]
            else:
                self._ended(step)
        if self.replayer is not None:
            self._replay_alarm.set(self.replayer.wake_at_ms)

    def _later(self, in_ms: float, act: Act) -> None:
        generation = self._generation

        def run() -> None:
            if generation == self._generation:
                act()

        self.process.after(in_ms, run)

    def _load(self, step: LoadRange) -> None:
        """Read a range from the shared log: all of it, less than that, or an error."""
        replayer, now_ms = self.replayer, self._now_ms
        assert replayer is not None
        self._loads[step.number] = False
        oldest, last = self._primary.disk.oldest_lsn, step.last_lsn
        if step.first_lsn < oldest:
            self._do(replayer.load_failed(step.number, GapError(step.first_lsn, oldest), now_ms))
            return
        if self.storage_fails:
            if self._random.random() < 0.6 or last == step.first_lsn:
                self._count("load fails")
                error = StorageError("the modelled storage failed", errno=errno.EIO)
                self._do(replayer.load_failed(step.number, error, now_ms))
                return
            self._count("load short")
            last -= 1
        if last > self._ledger.end.last_lsn:
            raise Violation("answers", f"{self.name} was answered LSN {last}, which is not durable")
        rows = self._ledger.rows[step.first_lsn - 1 : last]
        size = sum(len(key) + len(value) + 64 for key, value in rows)
        end = DeltaEnd(last, self._position_after(last))
        self._do(replayer.loaded(step.number, (step.first_lsn, rows), size, end, now_ms))

    def _apply(self, step: ApplyRange) -> None:
        assert self.replayer is not None
        payload = step.payload
        if isinstance(payload, list):
            self._count("delta")
            for header, data in payload:
                self.state.apply(header.first_lsn, rows_of(header, data))
        else:
            assert isinstance(payload, tuple)
            first_lsn, rows = payload
            self._count("load")
            self.state.apply(first_lsn, rows)
        self._do(self.replayer.done(step.number, self._now_ms))

    def _ended(self, step: EndReplay) -> None:
        """Begin anew where a range is gone or could not be read; nothing else may end a replay."""
        if not isinstance(step.error, GapError | StorageError):
            raise Violation("refused", f"{self.name} gave up: {type(step.error).__name__}: {step.error}")
        if isinstance(step.error, GapError) and step.error.wanted >= self._primary.disk.oldest_lsn:
            raise Violation("refused", f"{self.name} gave up: {step.error}, and nothing is gone")
        self._count(f"replay ends: {'gap' if isinstance(step.error, GapError) else 'storage'}")
        self._give_up()
