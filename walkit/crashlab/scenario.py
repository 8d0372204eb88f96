"""A scenario: a run until the power is cut, with the judge of its crash states."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue

from walkit._internal.threads import current_frames
from walkit.config import LogOptions
from walkit.crashlab.crash_rules import Oracle
from walkit.crashlab.recording import RecordingStorage
from walkit.crashlab.script import Script

LIMIT_S = 60.0
"""A run that takes longer hangs; the longest that is right takes some seconds on a busy machine."""
SMALL = LogOptions(segment_bytes=64 * 1024, frame_bytes_max=16 * 1024, idle_marker_ms=0)


@dataclass(frozen=True)
class Scenario:
    """One history: its run, its options, and the judge of its crash states."""

    name: str
    text: str
    """Its course, in a sentence."""
    run: Callable[[Script], None] = field(repr=False)
    options: LogOptions = SMALL
    is_store: bool = False
    covers: tuple[str, ...] = ()
    """Names of `walkit.crashlab.COVERAGE`: the exploration fails if no state was cut during one of them."""

    def play(self, seed: int = 0, *, record: bool = True) -> RecordingStorage:
        """Run it and return its storage, with all the points at which the power may be cut.

        Without `record` it takes no points, threads take no turns, and the scenario alone judges.
        If walkit raises an error that the scenario does not expect, or does not come back within `LIMIT_S`, that is the
        storage's `failure`, and the run ends there.
        """
        begun: SimpleQueue[Script] = SimpleQueue()
        failures: list[Exception] = []

        def run() -> None:
            script = Script(self.options, seed)
            script.storage.is_recording = record
            begun.put(script)
            try:
                self.run(script)
            except Exception as error:  # noqa: BLE001 - one without a type of walkit's is a finding the more
                failures.append(error)

        thread = threading.Thread(target=run, name="crashlab-script", daemon=True)
        thread.start()
        script = begun.get()
        try:
            thread.join(LIMIT_S)
        except KeyboardInterrupt:
            script.storage.give_up()
            thread.join(LIMIT_S)
            raise
        if thread.is_alive():
            frame = current_frames().get(thread.ident or 0)
            where = " < ".join(f"{f.name}:{f.lineno}" for f in reversed(traceback.extract_stack(frame)[-8:]))
            failures.append(TimeoutError(f"it hangs, in {where}"))
        storage = script.storage  # the scenario may have put another one there, to cut its power
        storage.failure = failures[0] if failures else None
        storage.take("the end of the run")
        storage.is_recording = False
        return storage

    def oracle(self) -> Oracle:
        """Return the judge of the states of its points."""
        return Oracle(self.options, self.is_store)
