"""Replicas of a log in virtual time: links and devices as arithmetic, and how many of them an append waits for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from walkit._internal.arguments import check_number, check_whole
from walkit.models.device import NS_PER_US, Device, DeviceModel, device_model


@dataclass(frozen=True, kw_only=True)
class Replicas:
    """The replicas of a simulated log: an append waits until `acks` of them have it on their devices.

    A frame takes `one_way_us` to each replica, and its acknowledgement the same time back. Frames that arrive during a
    write share the next one. Time-outs are not simulated: if too few devices work, appends wait.
    """

    devices: Sequence[str | DeviceModel]
    acks: int = 1
    one_way_us: float = 100.0

    def __post_init__(self) -> None:
        check_number(self.one_way_us, "one_way_us")
        check_whole(self.acks, "acks", 1, len(self.devices))

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        devices = [asdict(device_model(device)) for device in self.devices]
        return {"devices": devices, "acks": self.acks, "one_way_us": self.one_way_us}


class _Replica:
    """One replica: its device, and the frames that have arrived."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.is_writing = False
        self.arrived_lsn = self.waiting_bytes = self.acked_lsn = 0


class ModelledReplicas:
    """Replicas at work: `send` frames to them, and `reached` is called with the LSN that `acks` of them have."""

    def __init__(
        self,
        replicas: Replicas,
        seed: int,
        now_ns: Callable[[], int],
        call_at: Callable[[int, Callable[[], None]], None],
        reached: Callable[[int], None],
    ) -> None:
        self._acks, self._one_way_ns = replicas.acks, round(replicas.one_way_us * NS_PER_US)
        self._each = [_Replica(Device(device_model(d), seed + n)) for n, d in enumerate(replicas.devices, 1)]
        self._now_ns, self._call_at, self._reached = now_ns, call_at, reached

    def send(self, lsn: int, size_bytes: int) -> None:
        """Frames of this size, up to this LSN, are durable at the primary."""
        for replica in self._each:
            self._call_at(self._now_ns() + self._one_way_ns, partial(self._arrive, replica, lsn, size_bytes))

    def _arrive(self, replica: _Replica, lsn: int, size_bytes: int) -> None:
        replica.arrived_lsn = lsn
        replica.waiting_bytes += size_bytes
        if not replica.is_writing:
            self._write(replica)

    def _write(self, replica: _Replica) -> None:
        lsn, size_bytes, replica.waiting_bytes = replica.arrived_lsn, replica.waiting_bytes, 0
        replica.is_writing = True
        _, done_ns, failed = replica.device.submit(self._now_ns(), size_bytes)
        if not failed:  # otherwise its log takes nothing more
            self._call_at(done_ns, partial(self._land, replica))
            self._call_at(done_ns + self._one_way_ns, partial(self._acknowledge, replica, lsn))

    def _land(self, replica: _Replica) -> None:
        replica.is_writing = False
        if replica.waiting_bytes:
            self._write(replica)

    def _acknowledge(self, replica: _Replica, lsn: int) -> None:
        replica.acked_lsn = lsn
        self._reached(sorted((r.acked_lsn for r in self._each), reverse=True)[self._acks - 1])
