"""Names of all that a world makes happen, counted in its shells at the moment at which it happens."""

from __future__ import annotations

from walkit.replication.core.states import EDGES, Edge, StateTracker
from walkit.replication.delta.messages import PollAnswer, PollRefusal, PollRequest
from walkit.replication.protocol.messages import Refusal
from walkit.simulate.world_clock import Clock

NOT_MODELLED = ("bootstrapping", "planning", "rewinding", "stopped")
"""States of replication that no world enters."""
NOT_REACHED = tuple(("replica", start, "failed") for start in ("new", "detached", "connecting"))
"""Edges that no world takes: only a write or the primary's refusal ends a replica, and both need a connection."""


def edge_name(edge: Edge) -> str:
    """Return the name under which an edge of a state machine is counted."""
    return f"{edge.side}: {edge.start} to {edge.end}"


COVERAGE = {
    "cut": "a message is lost on a link that is cut",
    "clog": "a message waits until a link is free",
    "lose": "a message is lost on a link that loses some",
    "repeat": "a message comes twice",
    "reorder": "a message overtakes the one before it",
    "delay": "a message takes longer",
    "damage": "a message comes with a flipped bit in its frames",
    "damage seen": "a damaged message is dropped, as its checksum shows it",
    "stall": "an event waits until its process continues",
    "primary crashes": "the primary's process ends",
    "replica crashes": "a replica's process ends",
    "reader crashes": "a reader's process ends",
    "crash in a write": "the primary ends while frames are being written",
    "crash in an import": "a replica ends while frames are being written",
    "frame survives": "a frame is on the disk that was being written when the primary ended",
    "frame lost": "a frame is not on the disk that was being written when the primary ended",
    "import kept": "all frames of an import survive a crash",
    "import torn": "some frames of an import survive a crash, and some do not",
    "import lost": "no frame of an import survives a crash",
    "primary fails": "a write of the primary fails, which poisons its log",
    "replica fails": "a write of a replica fails",
    "load fails": "a load fails",
    "load short": "a load ends early",
    "claim stays": "a claim cannot be renewed",
    "frames in flight": "a frame is sealed while another one is being written",
    "writes overtake": "a frame is written before one that was sealed earlier",
    "shared frame": "several submissions share a frame",
    "segment begins": "a segment begins",
    "epoch begins": "an epoch begins after the first one",
    "epoch skips": "an epoch begins some bytes after the end of the one before",
    "segments dropped": "retention drops segments",
    "replica claim keeps": "the claim of a replica keeps a segment that retention would drop",
    "saved claim keeps": "the claim of a replica that is not connected keeps a segment",
    "claim keeps": "a claim keeps a segment that retention would drop",
    "claim of the dead keeps": "the claim of a reader whose process is down keeps a segment",
    "state keeps": "retention keeps a segment that is not in the snapshot",
    "replica claim lapsed": "the lease of a replica's claim ends",
    "claim lapsed": "retention drops records that a claim needed until its lease ended",
    "window full": "a session waits for acknowledgements before it sends more",
    "stream duplicate": "frames come to a replica that has them",
    "stream gap": "frames come to a replica that do not follow",
    "stream damage": "damaged frames come to a replica",
    "joined import": "several batches are imported in one write",
    "reseeded": "a replica is seeded with a copy, as its next record is gone",
    "lost: connection": "a connection ends as its peer closes it",
    "lost: connect": "no connection is made, as the primary is down",
    "lost: silence": "a connection ends as the primary is silent",
    "lost: frames": "a connection ends as frames come damaged again and again",
    "delta": "a reader applies frames of an answer",
    "load": "a reader applies records that it loaded",
    "load again": "a load that failed is tried again",
    "delta unfit": "a delta does not continue, and its range is loaded",
    "parallel loads": "a load is read while others are",
    "replay ends: gap": "a replay ends, as records are gone",
    "replay ends: storage": "a replay ends, as loads fail again and again",
    "begun anew": "a reader loads the snapshot, as its next record is gone",
    "late answer": "a reader drops an answer that comes after the poll was given up or answered",
    "poll given up": "a poll is given up that waits for news",
    "answer again": "an answer is given again",
    "old reader": "an answer goes to a reader of an older version",
    "delta: overflow": "frames do not fit into a delta session's buffer",
    "delta: in step": "a delta session answers frames, or that nothing is new",
    "delta: read": "a delta session answers that the log has to be read",
    "delta: closed": "a delta session ends",
    "hang-up": "a connection or a poll is given up by the one who made it",
    "hello": "a replica says hello",
    "welcome": "a replica is welcome",
    "batch": "frames come to a replica",
    "heartbeat": "the primary has nothing to send",
    "ack": "a replica acknowledges",
    "nack": "a replica asks for frames again",
    "refused: busy": "a replica is refused, as another session with its id is live",
    "refused: closed": "replicas are refused, as the log is closed",
    "refused: gap": "a replica is refused, as its next record is gone",
    "gone before it is read": "a session ends, as the frames that it has to send are gone",
    "gone before it is held": "a session ends, as records are gone before its claim is taken",
    "refused: protocol": "a replica is refused for a message out of turn",
    "poll": "a reader polls",
    "poll refused: closed": "a poll is refused, as the log is closed",
    "poll refused: stale": "a poll is refused, as its answer was taken",
    "poll refused: full": "a poll is refused, as too many readers have a session",
    "poll refused: busy": "a poll is refused, as others wait for the same answer",
} | {
    edge_name(edge): edge.cause
    for edge in EDGES
    if edge.start not in NOT_MODELLED
    and edge.end not in NOT_MODELLED
    and (edge.side, edge.start, edge.end) not in NOT_REACHED
}
"""By name."""
RARE = {
    "import torn": 1_000,
    "stream damage": 1_000,
    "lost: frames": 1_000,
    "replay ends: gap": 1_000,
    "poll refused: stale": 1_000,
    "poll refused: busy": 1_000,
    "replica: catching up to detached": 1_000,
    "replica: catching up to failed": 1_000,
    "replica: streaming to catching up": 1_000,
    "session: streaming to catching up": 1_000,
    "gone before it is read": 10_000,
    "gone before it is held": 10_000,
}
"""In how many schedules each of these has to happen; the others in `SCHEDULES_DEFAULT`."""
SCHEDULES_DEFAULT = 100


def wanted_of(schedules: int) -> tuple[str, ...]:
    """Return the names of all that has to happen in so many schedules."""
    return tuple(name for name in COVERAGE if schedules >= RARE.get(name, SCHEDULES_DEFAULT))


def message_name(message: object) -> str:
    """Return the name under which a message is counted that comes to its process."""
    said = message[-1] if isinstance(message, tuple) else message
    if said is None:
        return "hang-up"
    if isinstance(said, Refusal):
        return f"refused: {said.reason}"
    if isinstance(said, PollRefusal):
        return f"poll refused: {said.reason}"
    if isinstance(said, PollRequest):
        return "poll"
    if isinstance(said, PollAnswer):
        return "delta: read" if said.delta is None else "delta: in step"
    return type(said).__name__.lower()


def count_moves(tracker: StateTracker, clock: Clock) -> None:
    """Count the edges that were taken since the last call."""
    while tracker.moves:
        clock.count(edge_name(tracker.moves.popleft().edge))
