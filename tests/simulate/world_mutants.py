"""Mutants of cores and shells: each a small change of one function's source, with the fault that it stands for."""

from __future__ import annotations

import importlib
import inspect
import json
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PUBLISHER = "walkit.replication.core.publisher:Publisher"
SUBSCRIBER = "walkit.replication.core.subscriber:Subscriber"
POLLS = "walkit.replication.delta.poll_server:DeltaPolls"
POLLER = "walkit.replication.delta.poll_client:DeltaPoller"
REPLAYER = "walkit.replication.delta.replayer:DeltaReplayer"
SESSION = "walkit.replication.delta.session:DeltaSession"
CORE = "walkit.commit.core:OrderingCore"
TRIMMER = "walkit.log.trim:Trimmer"
MAINTENANCE = "walkit.replication.delta.maintenance:ReaderMaintenance"
IMPORTED = "walkit.replication.logs.imported_segments:ImportedSegments"
EVIDENCE = Path(__file__).parents[2] / "docs/evidence/world-mutants.json"
LEDGER = "walkit.objects.claims_object:ClaimsObject"
FEED = "walkit.replication.delta.server_feed:DeltaFeed"


@dataclass(frozen=True)
class Mutant:
    """In the source of `target` ("module:Class.function") `old`, which is there once, becomes `new`."""

    name: str
    target: str
    old: str
    new: str
    needs: str = ""
    """A kind of fault and the beginning of its target: schedules without it are left out."""
    on_objects: bool = False
    """Whether only a log on object storage can show it."""
    seed: int = 0
    """Where the search begins: at a seed that showed it once, so that a test runs few schedules."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Have the changed function in the place of the right one in this block."""
        module_name, _, path = self.target.partition(":")
        right: Any = importlib.import_module(module_name)
        for name in path.split("."):
            right = getattr(right, name)
        source = textwrap.dedent(inspect.getsource(right))
        assert source.count(self.old) == 1, f"{self.name}: {self.target} has changed"
        made: dict[str, Any] = {}
        code = "from __future__ import annotations\n" + source.replace(self.old, self.new)
        exec(compile(code, f"<mutant {self.name}>", "exec"), right.__globals__, made)  # noqa: S102 - the mutant
        kept, right.__code__ = right.__code__, made[right.__name__].__code__  # for all who have imported it
        try:
            yield
        finally:
            right.__code__ = kept


MUTANTS = (
    Mutant(
        "a session that never keeps frames",
        f"{SESSION}._move",
        "self.state = EDGES[self.state, event]",
        "pass",
    ),
    Mutant("an acknowledgement dropped", f"{PUBLISHER}._acknowledged", "self.acked = end\n", "return []\n"),
    Mutant(
        "acknowledged before it is on the disk",
        f"{SUBSCRIBER}._batch",
        "return [Import(run",
        "return [SendToPublisher(Ack(end=run.end)), Import(run",
    ),
    Mutant(
        "asking again taken for an acknowledgement",
        f"{PUBLISHER}.receive",
        "if isinstance(message, Ack):",
        "if True:",
        needs="lose primary>replica",
        seed=39,
    ),
    Mutant(
        "a claim that is one record ahead",
        f"{PUBLISHER}._acknowledged",
        "MoveClaim(end)",
        "MoveClaim(LogEnd(last_lsn=end.last_lsn + 1, position=end.position, chain=end.chain))",
    ),
    Mutant(
        "never asked again",
        f"{SUBSCRIBER}._nack",
        "return [SendToPublisher(Nack(end=self.next))]",
        "return []",
        needs="lose primary>replica",
        seed=99,
    ),
    Mutant(
        "acknowledged in the order of completion", f"{CORE}.written", "if self.completion_order:", "if True:"
    ),
    Mutant(
        "an error counted as progress",
        f"{REPLAYER}.load_failed",
        "part.backoff = part.backoff or Backoff(most_ms=PAUSE_MOST_MS, chance=self._chance)",
        "return self.loaded(number, (part.first.lsn + 1, []), 0, part.end, now_ms)",
        seed=9,
    ),
    Mutant(
        "the rest of a full load skipped",
        f"{REPLAYER}.loaded",
        "self._parts.insert(self._parts.index(part) + 1, _Part(self._numbers, end, part.end))",
        "end = part.end",
    ),
    Mutant(
        "a stale session believed by the reader",
        f"{POLLER}.answered",
        "self.session_id, self.session_epoch = answer.session_id, answer.session_epoch + 1",
        "self.session_epoch = answer.session_epoch + 1",
    ),
    Mutant(
        "a session that expires while its poll waits",
        f"{POLLS}.tick",
        "if not session.waiting and now_ms >= session.expires_ms:",
        "if now_ms >= session.expires_ms - 7_800:",
    ),
    Mutant(
        "the end of the log answered before it is durable",
        f"{SESSION}.append",
        "self.newest = DeltaEnd(frames.last_lsn, frames.next_position)",
        "self.newest = DeltaEnd(frames.last_lsn + 1, frames.next_position)",
    ),
    Mutant(
        "a gap in the stream counted as progress",
        f"{SUBSCRIBER}._batch",
        "self.gaps += 1\n        return self._nack(now_ms)",
        "self.next = LogEnd(last_lsn=self.next.last_lsn, position=batch.end_position)\n        return []",
        needs="lose primary>replica",
    ),
    Mutant(
        "a failed load that is never tried again",
        f"{REPLAYER}.load_failed",
        "part.retry_at_ms = now_ms + part.backoff.next_ms()",
        "part.retry_at_ms = float('inf')",
    ),
    Mutant(
        "frames that came twice acknowledged before they are on the disk",
        f"{SUBSCRIBER}._batch",
        "SendToPublisher(Ack(end=self.end))",
        "SendToPublisher(Ack(end=self.next))",
    ),
    Mutant(
        "silence that never ends a session",
        f"{SUBSCRIBER}.tick",
        'return self.lost("the publisher has been silent for too long", now_ms, "silence")',
        "return []",
    ),
    Mutant(
        "a short load counted as a whole one",
        f"{REPLAYER}.loaded",
        "if end.lsn != part.end.lsn and not is_full:",
        "if False:",
    ),
    Mutant(
        "loads applied in the order in which they come",
        f"{REPLAYER}._pump",
        "head = self._parts[0] if self._parts else None",
        'head = next((part for part in self._parts if part.state in ("ready", "applying")), None)',
    ),
    Mutant(
        "an answer that is kept after it was taken",
        f"{POLLS}._poll",
        "session.pending, session.epoch = None, request.session_epoch",
        "session.epoch = request.session_epoch",
    ),
    Mutant(
        "an overflow that keeps the session in step",
        f"{SESSION}.append",
        "self._move(DeltaEvent.OVERFLOW)",
        "pass",
    ),
    Mutant(
        "a reader's claim that follows what is applied instead of what is saved",
        f"{MAINTENANCE}._keep",
        "(self._state.applied_lsn if self._checkpoint is None else self.saved_lsn) + 1",
        "self._state.applied_lsn + 1",
    ),
    Mutant(
        "an announced end that is acknowledged and not durable",
        f"{FEED}._durable_end",
        "parts.core.durable_lsn, parts.core.durable_position",
        "parts.core.acked_lsn, parts.core.position",
    ),
    Mutant(
        "a trim that overlooks claims",
        f"{TRIMMER}._limit",
        'limits |= {f"claim {c.name}": c.needed_lsn - 1 for c in self.claims.live(manifest)}',
        "pass",
    ),
    Mutant("an import that is not synced", f"{IMPORTED}._write_frames", "sync=True", "sync=False"),
)
OBJECT_MUTANTS = (
    Mutant(
        "no second look after a swap that others have won",
        f"{LEDGER}.in_turn",
        "if batch.is_put:",
        "if True:",
        on_objects=True,
    ),
    Mutant(
        "a renewal that takes a conflict for success",
        f"{LEDGER}._put",
        "batch.is_put = tag is not None",
        "batch.is_put = True",
        on_objects=True,
    ),
    Mutant(
        "files deleted before the swap that stops naming them",
        f"{LEDGER}._put",
        "tag = put_own(self.reads",
        "self._delete(list(dict(batch.stored.files.values()).keys() - dict(after.files.values()).keys()))\n"
        "        tag = put_own(self.reads",
        on_objects=True,
    ),
    Mutant(
        "an opening that does not note its epoch beside the claims",
        "walkit.objects.opening:Opening.note_epoch",
        "epoch=self.epoch,",
        "epoch=before.epoch,",
        on_objects=True,
        seed=2,
    ),
    Mutant(
        "a fenced writer that replaces the bulk of the newer one",
        "walkit.objects.object_sink:ObjectSink.write",
        "self._refuse_unless_stale(found.header)",
        "pass",
        on_objects=True,
    ),
    Mutant(
        "bulks deleted as far as the log is acknowledged",
        "walkit.objects.sweeper:Sweeper.remove",
        "claims_object.known.floor.number",
        "self._vouched.acked.number",
        on_objects=True,
    ),
)
DRAWN = tuple(
    Mutant(*(mutant[field] for field in ("name", "target", "old", "new")))
    for mutant in json.loads(EVIDENCE.read_text())
    if "found" in mutant
)
"""The mutants of a mechanical draw that the world finds; the evidence explains the others."""
QUICK = 12
"""So many of them are found within a few schedules."""
