"""What the primary of a world has on stable storage, which its readers share."""

from __future__ import annotations

from walkit.format.manifest import EpochRecord, LogEnd, SegmentRecord, SegmentState
from walkit.segments.consumer_files import ClaimFact
from walkit.simulate.world_log import FrameStore, State

LOG_ID = 0x57A1
CLAIM_LEASE_MS = 700.0


def claim_of(name: str, first_lsn: int, until_us: int) -> ClaimFact:
    """Return a claim that counts until a moment."""
    return ClaimFact(name=name, state="live", first_lsn=first_lsn, lease_until_us=until_us)


class PrimaryDisk:
    """What the primary has on stable storage, and readers read there: it outlives the process."""

    def __init__(self) -> None:
        self.store = FrameStore()
        self.lineage: tuple[EpochRecord, ...] = ()
        self.epochs = 0
        self.starts: list[tuple[int, int]] = [(0, 0)]
        """(position, microseconds) of where each segment begins that is still there."""
        self.replica_claims: dict[str, ClaimFact] = {}
        self.acked: dict[str, LogEnd] = {}
        """By key, how far each replica has acknowledged: what its claim says."""
        self.snapshot = State()
        self.claims: dict[str, tuple[int, float]] = {}
        """By consumer: the first LSN that it needs, and until when its lease runs, in milliseconds."""

    @property
    def oldest_lsn(self) -> int:
        """The oldest record that is there."""
        return self.store.oldest_lsn

    def sealed(self) -> tuple[SegmentRecord, ...]:
        """Return the segments that are full and whose frames are all there."""
        found = []
        for number, ((start, created_us), (end, _)) in enumerate(
            zip(self.starts, self.starts[1:], strict=False)
        ):
            frames = self.store.frames[self.store.after(start) : self.store.after(end)]
            if frames:
                found.append(
                    SegmentRecord(
                        number=number,
                        state=SegmentState.SEALED,
                        start_position=start,
                        end_position=frames[-1].next_position,
                        first_lsn=frames[0].first_lsn,
                        last_lsn=frames[-1].last_lsn,
                        records=sum(len(frame.rows) for frame in frames),
                        frames=len(frames),
                        created_us=created_us,
                    )
                )
        return tuple(found)

    def drop_through(self, lsn: int) -> None:
        """Drop whole segments up to this LSN, which ends one."""
        self.store.drop_through(lsn)
        position = self.store.base.position
        while len(self.starts) > 1 and self.starts[1][0] <= position:
            del self.starts[0]
