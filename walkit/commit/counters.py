"""What the commit path counts; `log.statistics()` shows it under the names of `walkit.metrics`."""

from __future__ import annotations

from dataclasses import dataclass

from walkit.commit.frame import SealedFrame


@dataclass(slots=True)
class CommitCounters:
    """Counters since opening. Changed by the leader only, but for `syncs`, which a sync under way changes too."""

    frames_written: int = 0
    marks_written: int = 0
    frame_bytes: int = 0
    user_bytes: int = 0
    padding_bytes: int = 0
    syncs: int = 0
    write_ns: int = 0
    prepare_ns: int = 0

    def wrote(self, frame: SealedFrame, write_ns: int, synced: bool) -> None:
        """Count a frame that was written, and whether its write was synced."""
        self.frames_written += 1
        self.frame_bytes += frame.footprint
        self.user_bytes += frame.user_bytes
        self.write_ns += write_ns
        self.syncs += synced
