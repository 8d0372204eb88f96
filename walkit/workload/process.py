"""The parent's end of the one protocol of child processes; the child's is `role`.

Independently of the lines, three things hold for every child: none remains when its parent closes it or dies, a
line that a kill has cut is never acted on, and a child that ends unasked has its last words in the error.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic, perf_counter_ns
from types import TracebackType
from typing import IO, Any, Self

from walkit._internal.threads import EndingThread
from walkit.errors import WalkitError

LAST_WORDS_BYTES = 4000
POLL_S = 0.1


class ChildWriterError(WalkitError):
    """The child writer ended unasked. `returncode` is negative for a signal."""

    code = "child-writer"

    def __init__(self, message: str, *, returncode: int | None, output: str = "") -> None:
        super().__init__(f"{message}\n{output}" if output else message)
        self.returncode, self.output = returncode, output


def python_child(*arguments: str) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment of `python -m ARGUMENTS`, with this very walkit in it."""
    command = [sys.executable, "-P"]  # a file of the current folder must not shadow a module
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return [*command, "-m", *arguments], {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def last_words(words: IO[bytes]) -> str:
    """Return the end of `words`, a child's standard error."""
    size = words.seek(0, os.SEEK_END)
    words.seek(max(size - LAST_WORDS_BYTES, 0))
    return words.read().decode("utf-8", "replace").strip()


class TalkingChild:
    """Starts a child in its role (see `role`) and calls `hear(line)` for each of its lines, on another thread.

    `hear` is called with `changed` held; it is notified after each line and at the end. An object with
    the key "error" is the child's own reason for its end. Used by one thread, except `hear` and `kill`.

    A context manager: `with` starts the child, and no child outlives it. If this process itself dies, the child ends
    too.
    """

    def __init__(
        self, role: str, arguments: Mapping[str, Any], hear: Callable[[dict[str, Any]], object]
    ) -> None:
        """Prepare; `role` is MODULE:FUNCTION, and the function gets `arguments`, which JSON can hold."""
        self.changed = threading.Condition()
        self.killed_ns: int | None = None
        """When `kill` was called, on the machine's monotonic clock."""
        self._command = ("walkit.workload", role, json.dumps(arguments))
        self._hear = hear
        self._error: str | None = None
        self._cause: Exception | None = None
        """The error that a line caused here, with its stack."""
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: EndingThread | None = None
        self._stderr: IO[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self._running().pid

    @property
    def talking(self) -> bool:
        """Whether lines may still come."""
        return self._reader is not None and self._reader.is_alive()

    def start(self) -> None:
        """Start the child, begin to read its lines, and hand over its input.

        ChildWriterError: it cannot be started. One that ends before it has read everything is not an error here.
        """
        command, environment = python_child(*self._command)
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - close() closes it
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(
                command,
                stdin=pipe,
                stdout=pipe,
                stderr=self._stderr,
                env=environment,
                bufsize=0,
            )
            reader = EndingThread(target=self._read, name="child-pipe", daemon=True)
            reader.start()
            self._reader = reader  # only now: `close` cannot wait for one that never began
            self._hand_over()
        except OSError as error:
            self.close()
            raise ChildWriterError(f"the child writer did not start: {error}", returncode=None) from error
        except BaseException:
            self.close()
            raise

    def _hand_over(self) -> None:
        """Send the child's input; here nothing. Its standard input stays open."""

    def send(self, data: memoryview | bytes) -> None:
        """Write to the child's standard input; a child that has ended already does not get it."""
        pipe = self._running().stdin
        assert pipe is not None
        left = memoryview(data)
        try:
            while left:
                left = left[pipe.write(left) :]
        except BrokenPipeError:
            return  # wait() and failure() have the reason

    def _read(self) -> None:
        process = self._running()
        assert process.stdout is not None
        try:
            with open(process.stdout.fileno(), "rb", closefd=False) as lines:
                for line in lines:
                    if not line.endswith(b"\n"):
                        break  # cut by the kill
                    said = json.loads(line)
                    with self.changed:
                        if "error" in said:
                            self._error = said["error"]
                        else:
                            self._hear(said)
                        self.changed.notify_all()
        except Exception as error:  # noqa: BLE001 - after any bad line no thread may wait for the next
            self._error, self._cause = f"a line that makes no sense: {error!r}", error
            process.kill()
        with self.changed:
            self.changed.notify_all()

    def kill(self) -> None:
        """End the child with SIGKILL: it can do nothing about it, and nothing more."""
        self.killed_ns = perf_counter_ns()
        self._running().kill()

    def wait_until(self, holds: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until `holds()`, asked after lines; False if the child ended, or the time was over, before."""
        deadline = None if timeout_s is None else monotonic() + timeout_s
        while True:
            ended = not self.talking  # before it is asked: the last line counts
            if holds():
                return True
            if ended or (deadline is not None and monotonic() >= deadline):
                return False
            with self.changed:
                self.changed.wait(POLL_S)

    def wait(self) -> bool:
        """Wait for the child's end and for its last line; True if `kill` ended it during its work.

        Raises ChildWriterError if it failed.
        """
        process = self._running()
        assert self._reader is not None
        self._reader.join()
        returncode = process.wait()
        killed = self.killed_ns is not None and returncode == -signal.SIGKILL
        if self._error is not None or (returncode != 0 and not killed):
            raise self._failure(returncode) from self._cause
        return killed

    @property
    def returncode(self) -> int:
        """How the child ended; only after `wait`."""
        returncode = self._running().returncode
        assert returncode is not None
        return returncode

    def close(self) -> None:
        """Kill the child if it is still there, and free its resources. Closing twice does nothing."""
        process = self._process
        if process is not None:
            if process.poll() is None:
                self.kill()
            process.wait()
            if self._reader is not None:
                self._reader.join()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        if self._stderr is not None:
            self._stderr.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ChildWriterError("the child writer was not started", returncode=None)
        return self._process

    def _failure(self, returncode: int) -> ChildWriterError:
        if self._error is not None:
            return ChildWriterError(f"the child writer failed: {self._error}", returncode=returncode)
        how = f"exit status {returncode}"
        if returncode < 0:
            how = f"signal {-returncode}, which this process did not send"
        output = ""
        if self._stderr is not None and not self._stderr.closed:
            output = last_words(self._stderr)
        return ChildWriterError(f"the child writer ended with {how}", returncode=returncode, output=output)
