"""Names of all that a world makes happen: by its faults, and by the events of the programs in it."""

from __future__ import annotations

from walkit.events import EVENTS
from walkit.replication.core.states import EDGES, Edge

NOT_MODELLED = ("stopped",)
"""States of replication that no world enters."""
NOT_REACHED = tuple(("replica", start, "failed") for start in ("new", "detached", "connecting", "rewinding"))
"""Edges that no world shows: a failed write or a refusal ends a replica, and one that is not rewound says no more."""
SEEN_EVENTS = (
    "walkit.log.open",
    "walkit.log.poison",
    "walkit.recovery.finish",
    "walkit.recovery.cut",
    "walkit.segment.prepare",
    "walkit.segment.rotate",
    "walkit.segment.seal",
    "walkit.segment.trim",
    "walkit.snapshot.write",
    "walkit.snapshot.skip",
    "walkit.checkpoint.finish",
    "walkit.checkpoint.fail",
    "walkit.retention.drop",
    "walkit.claim.expire",
    "walkit.claim.clock",
    "walkit.replica.unclaimed",
    "walkit.replica.bootstrap",
    "walkit.replica.replace",
    "walkit.replica.promote",
    "walkit.replica.rewind",
)


def edge_name(edge: Edge) -> str:
    """Return the name under which an edge of a state machine is counted."""
    return f"{edge.side}: {edge.start} to {edge.end}"


COVERAGE = (
    {
        "cut": "a message is lost on a link that is cut",
        "clog": "a message waits until a link is free",
        "lose": "a message is lost on a link that loses some",
        "repeat": "a message comes twice",
        "reorder": "a message overtakes the one before it",
        "delay": "a message takes longer",
        "damage": "a message comes with a flipped bit, in its frames or anywhere",
        "nobody listens": "a host refuses a call, as the primary is down",
        "stall": "a thread or a message waits until its process continues",
        "primary crashes": "the primary's process ends, with the power of its disk",
        "replica crashes": "a replica's process ends, with the power of its disk",
        "reader crashes": "a reader's process ends, with the power of its disk",
        "primary fails": "a write of the primary fails, and its log is opened again",
        "replica fails": "a write of a replica fails, which ends it",
        "reader fails": "a reader's storage fails for good, which ends it",
        "skew": "a wall clock that was wrong is set right",
        "replica in another folder": "the folder of a replica is put back, or an empty one is there",
        "reader in another folder": "the checkpoints of a reader are put back, or an empty folder is there",
        "a folder that is put back is refused": "a replica that has less than it acknowledged is refused",
        "reader meets a gap": "a reader ends, as its next record is gone",
        "a primary is lost": "a replica takes the place of a primary that is lost",
        "two primaries": "a replica takes the place of a primary that still runs",
        "promised by replicas": "a replica is promoted that has to have each acknowledged record",
        "a rewind is held": "claims hold what a rewind would cut, and it is forced",
        "replica begins anew": "a replica or an old primary that cannot be rewound begins in an empty folder",
        "requests": "a request to the objects is refused, lost or done late",
        "fenced": "a writer is refused, as another one has taken its log over",
        "compacted": "files take the place of objects",
        "reader begins anew": "a reader that has applied what a promotion lost begins in an empty folder",
    }
    | {
        "delta": "a reader applies frames of an answer",
        "load": "a reader applies records that it loaded",
        "load again": "a load that failed is tried again",
        "delta unfit": "a delta does not continue, and its range is loaded",
    }
    | {name: EVENTS[name][1] for name in SEEN_EVENTS}
    | {
        edge_name(edge): edge.cause
        for edge in EDGES
        if edge.start not in NOT_MODELLED
        and edge.end not in NOT_MODELLED
        and (edge.side, edge.start, edge.end) not in NOT_REACHED
    }
)
"""By name."""
RARE = {
    "a folder that is put back is refused": 1_000,
    "walkit.claim.clock": 1_000,
    "replica: connecting to detached": 10_000,
    "reader fails": 1_000,
    "reader meets a gap": 1_000,
    "walkit.recovery.cut": 1_000,
    "walkit.checkpoint.fail": 10_000,
    "walkit.replica.unclaimed": 1_000,
    "replica: streaming to failed": 1_000,
    "replica: streaming to catching up": 1_000,
    "replica: catching up to detached": 1_000,
    "replica: bootstrapping to detached": 1_000,
    "replica: streaming to bootstrapping": 10_000,
    "replica: catching up to failed": 10_000,
    "replica: bootstrapping to failed": 10_000,
    "session: planning to ended": 10_000,
}
"""In how many schedules each of these has to happen; the others in `SCHEDULES_DEFAULT`."""
SCHEDULES_DEFAULT = 100


def required_in(schedules: int) -> tuple[str, ...]:
    """Return the names of all that has to happen in so many schedules."""
    return tuple(name for name in COVERAGE if schedules >= RARE.get(name, SCHEDULES_DEFAULT))
