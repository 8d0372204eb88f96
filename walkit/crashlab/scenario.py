"""A scenario: what is run until the power is cut, with what its crash states are judged by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from walkit.config import LogOptions
from walkit.crashlab.oracle import Oracle
from walkit.crashlab.recording import RecordingStorage
from walkit.crashlab.script import Script
from walkit.errors import WalkitError

SMALL = LogOptions(segment_bytes=64 * 1024, frame_bytes_max=16 * 1024, idle_marker_ms=0)


@dataclass(frozen=True)
class Scenario:
    """One history: what is run, with which options, and by what its crash states are judged."""

    name: str
    text: str
    """Its course, in a sentence."""
    run: Callable[[Script], None] = field(repr=False)
    options: LogOptions = SMALL
    is_store: bool = False
    covers: tuple[str, ...] = ()
    """Names of `walkit.crashlab.COVERAGE`: the exploration fails if no state was cut during one of them."""

    def play(self, seed: int = 0) -> RecordingStorage:
        """Run it and return its storage, with all the points at which the power may be cut.

        Where walkit raises what the scenario does not expect, that is the storage's `failure`, and the run ends there.
        """
        script = Script(self.options, seed)
        failure = None
        try:
            self.run(script)
        except (WalkitError, AssertionError) as error:
            failure = error
        storage = script.storage  # the scenario may have put another one there, to cut its power
        storage.failure = failure
        storage.take("the end of the run")
        storage.is_recording = False
        return storage

    def oracle(self) -> Oracle:
        """Return what judges the states of its points."""
        return Oracle(self.options, self.is_store)
