"""The functions of walkit that one append goes through, and how often it passes from one file to another.

`python -m tests.log.append_trace` prints them.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

import walkit

PACKAGE = Path(walkit.__file__).parent
WARM_RECORDS = 50


@dataclass(frozen=True)
class CallTrace:
    """Calls of walkit's functions, in order: (file within the package, qualified name) of each."""

    calls: tuple[tuple[str, str], ...]

    @property
    def modules(self) -> set[str]:
        """The files that are entered."""
        return {file for file, _ in self.calls}

    @property
    def file_changes(self) -> int:
        """How often a call is in another file than the call before it."""
        files = [file for file, _ in self.calls]
        return sum(file != before for before, file in pairwise(files))

    def __str__(self) -> str:
        head = f"{len(self.calls)} calls, {len(self.modules)} modules, {self.file_changes} changes of file"
        return "\n  ".join([head, *(f"{file:28} {name}" for file, name in self.calls)])


def traced(act: Callable[[], object]) -> CallTrace:
    """Call `act` and return its calls of walkit, on this thread."""
    calls: list[tuple[str, str]] = []

    def profile(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            calls.append((path.relative_to(PACKAGE).as_posix(), frame.f_code.co_qualname))

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        act()
    finally:
        sys.setprofile(before)
    return CallTrace(tuple(calls))


def append_trace(directory: str | Path, *, on_main: bool = False) -> CallTrace:
    """Return the trace of one append to a warm log of real files, off the main thread or on it."""
    found: list[CallTrace] = []

    def append() -> None:
        with walkit.open(directory) as log:
            for _ in range(WARM_RECORDS):
                log.append(bytes(100))
            log.wait_idle()
            found.append(traced(lambda: log.append(bytes(100))))

    if on_main:
        append()
    else:
        thread = threading.Thread(target=append)
        thread.start()
        thread.join()
    return found[0]


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        print(append_trace(Path(folder) / "log"))
        print("On the main thread:", append_trace(Path(folder) / "main", on_main=True))
