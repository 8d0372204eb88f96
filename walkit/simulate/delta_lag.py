"""How far a delta reader lags, in virtual time: the real cores of poll and replay, on a modelled link and storage.

A writer makes frames durable at an even rate; a reader polls over a link with a round trip, and reads what no delta
brings from a modelled remote storage. Frames are made of zeros and are not checked: it is about when they come.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

import numpy as np

from walkit._internal.arguments import check_number, refuse
from walkit.models.device import Device, DeviceModel
from walkit.models.remote_storage import REMOTE
from walkit.replication.delta.messages import DeltaEnd, PollAnswer, PollRefusal, PollRequest
from walkit.replication.delta.poll_client import DeltaPoller
from walkit.replication.delta.poll_server import DeltaCounts, DeltaOptions, DeltaPolls, Reply
from walkit.replication.delta.replayer import (
    ApplyRange,
    DeltaReplayer,
    EndReplay,
    LoadRange,
    ReplayCounts,
    ReplayLimits,
    ReplayStep,
)

LOG_ID, EPOCH_ID = 1, 1


class ZeroFrames(NamedTuple):
    """A frame of zeros."""

    first_lsn: int
    last_lsn: int
    position: int
    next_position: int
    data: bytes


@dataclass(frozen=True, kw_only=True)
class DeltaLag:
    """The result of a simulated reader. Lags are milliseconds from a frame's durability to its application."""

    frames: int
    median_ms: float
    p99_ms: float
    answers: DeltaCounts
    replay: ReplayCounts

    @property
    def hit_rate(self) -> float:
        """The part of the applied bytes that came by delta, from 0 to 1."""
        by_delta, by_load = self.replay.delta_bytes, self.replay.loaded_bytes
        return by_delta / max(by_delta + by_load, 1)


@dataclass
class _World:
    """One writer, one reader, and the events between them."""

    options: DeltaOptions
    frame_bytes: int
    records: int
    every_ms: float
    until_ms: float
    round_trip_ms: float
    device: Device
    limits: ReplayLimits
    now_ms: float = 0.0
    end: DeltaEnd = field(default_factory=DeltaEnd)

    def __post_init__(self) -> None:
        ids = count(1)
        self._order = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._durable: dict[int, float] = {}
        self._data = bytes(self.frame_bytes)
        self.lags_ms: list[float] = []
        self.polls = DeltaPolls(LOG_ID, EPOCH_ID, options=self.options, new_id=lambda: next(ids))
        self.poller = DeltaPoller(interval_ms=0)
        self.replayer = DeltaReplayer(
            DeltaEnd(), log_id=LOG_ID, limits=self.limits, chance=lambda: 1.0, frames_of=lambda a: a.delta
        )

    def run(self) -> None:
        """Run until the time is over; what is under way then is left."""
        self._at(0, self._append)
        self._at(0, self._poll)
        while self._events and self._events[0][0] <= self.until_ms:
            self.now_ms, _, act = heappop(self._events)
            act()

    def _at(self, in_ms: float, act: Callable[[], None]) -> None:
        heappush(self._events, (self.now_ms + in_ms, next(self._order), act))

    def _append(self) -> None:
        start = self.end
        self.end = DeltaEnd(start.lsn + self.records, start.position + self.frame_bytes)
        frames = ZeroFrames(start.lsn + 1, self.end.lsn, start.position, self.end.position, self._data)
        self._durable[self.end.lsn] = self.now_ms
        self._send_replies(self.polls.appended(frames, self.now_ms))
        self._at(self.every_ms, self._append)

    def _poll(self) -> None:
        request = self.poller.request(self.replayer.applied, self.now_ms)
        if request is not None:
            self._at(self.round_trip_ms / 2, lambda: self._take(request))

    def _take(self, request: PollRequest) -> None:
        self._send_replies(self.polls.poll(request, request, self.end, self.now_ms))
        self._wake()

    def _wake(self) -> None:
        """Have the core look again when its time has come."""
        wake_at_ms = self.polls.wake_at_ms
        if wake_at_ms is not None:
            self._at(max(wake_at_ms - self.now_ms, 0), self._tick)

    def _tick(self) -> None:
        self._send_replies(self.polls.tick(self.end, self.now_ms))

    def _send_replies(self, replies: list[Reply]) -> None:
        for token, answer in replies:
            assert isinstance(token, PollRequest)
            self._at(self.round_trip_ms / 2, partial(self._on_answer, token, answer))
            self._wake()

    def _on_answer(self, request: PollRequest, answer: PollAnswer | PollRefusal) -> None:
        assert isinstance(answer, PollAnswer), answer
        taken = self.poller.answered(request, answer, self.now_ms)
        if taken is not None:
            self._do(self.replayer.answered(taken, self.now_ms))
        self._poll()

    def _do(self, steps: list[ReplayStep]) -> None:
        for step in steps:
            if isinstance(step, EndReplay):
                raise step.error
            if isinstance(step, LoadRange):
                self._load(step)
            else:
                self._apply(step)

    def _load(self, load: LoadRange) -> None:
        size = (load.last_lsn - load.first_lsn + 1) * self.frame_bytes // self.records
        done_ns = self.device.submit(round(self.now_ms * 1e6), size).done_ns
        end = DeltaEnd(load.last_lsn, load.last_lsn * self.frame_bytes // self.records)
        self._at(
            done_ns / 1e6 - self.now_ms,
            lambda: self._do(self.replayer.loaded(load.number, None, size, end, self.now_ms)),
        )

    def _apply(self, step: ApplyRange) -> None:
        for lsn in range(step.first_lsn, step.last_lsn + 1):
            since_ms = self._durable.pop(lsn, None)
            if since_ms is not None:
                self.lags_ms.append(self.now_ms - since_ms)
        self._do(self.replayer.done(step.number, self.now_ms))


def delta_lag(
    *,
    bytes_per_s: float = 20e6,
    frame_bytes: int = 16 * 1024,
    record_bytes: int = 1024,
    seconds: float = 2.0,
    round_trip_ms: float = 1.0,
    options: DeltaOptions | None = None,
    limits: ReplayLimits | None = None,
    device: DeviceModel = REMOTE,
    seed: int = 0,
) -> DeltaLag:
    """Simulate one delta reader of one writer for so many virtual seconds, and return how far it lagged.

    With `options=DeltaOptions(buffer_bytes=0)` no delta is ever made: the reader reads the log alone. The same
    arguments give the same result. OptionsError for a number that is not above 0, and for a device whose requests may
    fail.
    """
    given = {
        "bytes_per_s": bytes_per_s,
        "frame_bytes": frame_bytes,
        "record_bytes": record_bytes,
        "seconds": seconds,
    }
    for name, value in given.items():
        check_number(value, name, above=True)
    if device.failure_rate:
        refuse("device", device, "a device without failures")
    world = _World(
        options=options or DeltaOptions(),
        frame_bytes=frame_bytes,
        records=max(frame_bytes // record_bytes, 1),
        every_ms=frame_bytes / bytes_per_s * 1000,
        until_ms=seconds * 1000,
        round_trip_ms=round_trip_ms,
        device=Device(device, seed),
        limits=limits or ReplayLimits(loads_max=8, bytes_max=64 << 20),
    )
    world.run()
    lags = np.asarray(world.lags_ms or [math.inf])
    return DeltaLag(
        frames=len(world.lags_ms),
        median_ms=float(np.median(lags)),
        p99_ms=float(np.quantile(lags, 0.99)),
        answers=world.polls.counts,
        replay=world.replayer.counts,
    )
