"""Shared by the tests of a replica's upkeep: a process that is killed by SIGKILL before one change of the disk."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

from tests.log.logs import Child

FORKER_IMPORTS = """
    import fnmatch, json, os, signal, sys, traceback
    from tests.crash_recorder import CHANGES
    from walkit.errors import WalkitError
    from walkit.models import FaultyStorage
    from walkit.replication import Replica, heal, promote
    from walkit.replication.replica.rewind import rewind
    from walkit.storage import FileStorage

    class Killing(FaultyStorage):
        left = 0
        counted, pattern = CHANGES, "*"
        def perform(self, operation, *how, **else_):
            if operation.name in self.counted and fnmatch.fnmatchcase(operation.file, self.pattern):
                self.left -= 1
                if self.left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return super().perform(operation, *how, **else_)
"""
FORKER = (
    FORKER_IMPORTS
    + """
    def checkpoint(storage):
        with_its_log = Replica(storage, "127.0.0.1:1")
        with_its_log.checkpoint()
        with_its_log.stop()

    WORK = {
        "checkpoint": checkpoint,
        "promote": promote,
        "rewind": lambda storage: rewind(storage, int(sys.argv[2])),
        "heal": lambda storage: heal(storage, sys.argv[2]),
    }
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        path, nth = json.loads(line)
        pid = os.fork()
        if not pid:
            storage = Killing(FileStorage(path))
            storage.left = nth
            WORK[sys.argv[1]](storage)
            os._exit(0)
        print(json.dumps(os.waitpid(pid, 0)[1]), flush=True)
"""
)


def kills(work: str, *arguments: object, step: int = 1) -> Iterator[Kill]:
    """Yield what kills `work` before its first change, its second and so on; the last one lets it end."""
    with Child(FORKER, work, *map(str, arguments)) as forker:
        forker.read()
        kill = Kill(forker, 1)
        while not kill.ended:
            yield kill
            assert kill.nth < 2000
            kill = Kill(forker, kill.nth + step, kill.has_ended)


class Kill:
    """One run that is killed before its nth change."""

    def __init__(self, forker: Child, nth: int, ended: bool = False) -> None:
        self._forker, self.nth, self.ended = forker, nth, ended
        self.has_ended = False

    def __call__(self, path: Path) -> bool:
        """Run on the folder; say whether it was killed, and not done before."""
        self._forker.tell([os.fspath(path), self.nth])
        status = self._forker.read()
        assert status in (0, signal.SIGKILL), status
        self.has_ended = status == 0
        return not self.has_ended
