"""The call `Frames` of a primary: the frames after an end, sent once to a caller with a right to read.

It makes no session, identity or claim: a trim of the frames being sent ends the call with a gap.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from walkit.errors import (
    DivergenceError,
    GapError,
    LogClosedError,
    LogFencedError,
    OptionsError,
    WalkitError,
)
from walkit.replication.core.absence import is_absent
from walkit.replication.core.answers import batch_of, frame_too_large
from walkit.replication.core.lag import Lag
from walkit.replication.logs.source import Source, primary_state_of
from walkit.replication.primary.frame_reader import FrameReader
from walkit.replication.protocol.lineage import ends_before, why_refused
from walkit.replication.protocol.messages import Hello, Refusal
from walkit.replication.protocol.wire import WireError, decode_from_subscriber, encode_from_publisher

FRAMES_METHOD = "/walkit.replication.Replication/Frames"
BATCH_BYTES = 1 << 20
CALLS_MAX = 8
"""So many calls at a time; one more is refused, to be tried again."""
STALL_S = 30.0
"""A caller that takes nothing for so long loses its call: it would keep one of the few places."""


class RangeService:
    """Serves the calls `Frames`, each on its own thread."""

    def __init__(self, source: Source, clock: Callable[[], float] | None = None) -> None:
        self._source, self._clock = source, clock or time.monotonic
        self._taken: dict[Any, float] = {}
        """When each call under way has taken something."""
        self._places = deque(range(CALLS_MAX))
        self._unpacking = threading.Lock()

    def frames(self, data: bytes, context: Any) -> Iterator[bytes]:
        """Yield batches of the durable frames after the end in a hello, while the caller reads; a refusal ends them."""
        try:
            place = self._places.pop()
        except IndexError:
            yield encode_from_publisher(
                Refusal(reason="full", message=f"{CALLS_MAX} calls are served already")
            )
            return
        reader = FrameReader(self._source)
        try:
            self._note(context)
            for message in self._batches(reader, data, context):
                yield message
                self._note(context)
        except WireError as error:
            yield encode_from_publisher(Refusal(reason="protocol", message=str(error)))
        except WalkitError as error:
            yield encode_from_publisher(refusal_of(error, self._source))
        finally:
            reader.close()
            self._taken.pop(context, None)
            self._places.append(place)

    def tick(self) -> None:
        """Cancel the calls of callers that take nothing: to be called now and then."""
        oldest = self._clock() - STALL_S
        stalled = [context for context, taken in tuple(self._taken.items()) if taken < oldest]
        for context in stalled:
            context.cancel()

    def _note(self, context: Any) -> None:
        self._taken[context] = self._clock()

    def _batches(self, reader: FrameReader, data: bytes, context: Any) -> Iterator[bytes]:
        with self._unpacking:  # a lineage may be long
            hello = decode_from_subscriber(data, len(self._source.manifest().lineage) + 1)
        if not isinstance(hello, Hello):
            raise WireError("the request is not a hello")
        detail = self._source.ended()
        if detail:
            raise LogClosedError(detail)
        primary = primary_state_of(self._source, hello)
        if ends_before(hello, primary):
            return  # it has no frames there, which says nothing against either history
        refusal = why_refused(hello, primary)
        lag, end = Lag(), hello.end
        lag.source_at(primary.durable_lsn, primary.durable_position, end.last_lsn, 0.0)
        while refusal is None and context.is_active():
            run = reader.read(end, BATCH_BYTES)
            if run is None:
                return
            refusal = frame_too_large(run, hello.frame_bytes_max)
            if refusal is None:
                yield encode_from_publisher(batch_of(run, (), "", run.data, lag))
                end = run.end
        if refusal is not None:
            yield encode_from_publisher(refusal)


def refusal_of(error: WalkitError, source: Source) -> Refusal:
    """Return the refusal that names the error to a subscriber."""
    if isinstance(error, GapError):
        return Refusal(reason="gap", message=str(error), lsn=error.wanted, other_lsn=error.oldest)
    if isinstance(error, DivergenceError):
        return Refusal(reason="divergence", message=str(error), lsn=error.first_lsn)
    if isinstance(error, OptionsError):
        return Refusal(reason="level", message=str(error))
    if isinstance(error, LogClosedError | LogFencedError) or source.ended():
        return Refusal(reason="closed", message=str(error))
    if is_absent(error):
        return Refusal(reason="absent", message=str(error))
    return Refusal(reason="damage", message=f"{type(error).__name__}: {error}")
