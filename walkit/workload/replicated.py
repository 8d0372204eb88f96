"""A primary under a paced load, its replicas and delta readers as children that can be killed: the parent's side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from walkit._internal.arguments import check_whole
from walkit.config import MIB
from walkit.workload.process import ChildWriterError, TalkingChild

RATE_MAX = 20_000


@dataclass(frozen=True, kw_only=True, slots=True)
class PacedLoad:
    """So many records per second, in an open loop, until the log has its size."""

    records_per_s: int = 500
    record_bytes: int = 512
    log_bytes_max: int = 256 * MIB
    """The log is not trimmed: from this size on it rests."""
    seed: int = 7

    def __post_init__(self) -> None:
        check_whole(self.records_per_s, "records_per_s", 0, RATE_MAX)
        check_whole(self.record_bytes, "record_bytes", 1, MIB)
        check_whole(self.log_bytes_max, "log_bytes_max", 1, 1 << 40)


class ReplicatedChild(TalkingChild):
    """A primary, a replica or a delta reader as a child, with its newest line. Used by one thread; `newest` by any.

    `on_line` is called with each line, on the thread that reads them.
    """

    def __init__(self, role: str, on_line: Callable[[dict[str, Any]], object], **arguments: object) -> None:
        self.newest: dict[str, Any] | None = None
        """Its newest line; None before the first."""
        self._on_line = on_line
        super().__init__(f"walkit.workload.replicated_process:{role}", arguments, self._take)

    @classmethod
    def primary(
        cls, path: str, load: PacedLoad, on_line: Callable[[dict[str, Any]], object]
    ) -> ReplicatedChild:
        """Return a primary of the log at `path` that is not started yet."""
        return cls("serve", on_line, path=path, load=asdict(load))

    @classmethod
    def replica(
        cls, path: str, address: str, name: str, codec: str, on_line: Callable[[dict[str, Any]], object]
    ) -> ReplicatedChild:
        """Return a replica that is not started yet; `codec` is "zstd", "snappy" or ""."""
        return cls("follow", on_line, path=path, address=address, name=name, codec=codec)

    @classmethod
    def delta(
        cls, path: str, address: str, name: str, log: str, on_line: Callable[[dict[str, Any]], object]
    ) -> ReplicatedChild:
        """Return a delta reader of the folder `log` that is not started yet; its checkpoints are in `path`."""
        return cls("read_deltas", on_line, path=path, address=address, name=name, log=log)

    def start_and_hear(self, timeout_s: float) -> None:
        """Start it and wait for its first line. ChildWriterError if none comes: nothing of it is left then."""
        self.start()
        if self.wait_until(lambda: self.newest is not None, timeout_s):
            return
        try:
            if not self.talking:
                self.wait()
            raise ChildWriterError(f"the child said nothing for {timeout_s:.0f} s", returncode=None)
        finally:
            self.close()

    def stop(self, timeout_s: float) -> None:
        """Let it close its log and end; it is killed if it has not after so long. Releases its resources."""
        self.send(b"stop\n")
        self.wait_until(lambda: not self.talking, timeout_s)
        self.close()

    def failure(self) -> str:
        """Return why it ended by itself, once it has; "" if it was stopped."""
        try:
            self.wait()
        except ChildWriterError as error:
            return str(error)
        return ""

    def _take(self, said: dict[str, Any]) -> None:
        self.newest = said
        self._on_line(said)
