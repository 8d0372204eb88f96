"""Interrupting a cell of a real kernel: drive and replay stop, the partial Run is there, the log goes on."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import start_new_kernel

# Slow: a kernel starts. workload/test_drive stops a drive by Ctrl-C of another process in each run.
pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
GUARD_S = 120


class Kernel:
    """A kernel to run cells in, one at a time."""

    def __init__(self, manager: Any, client: Any) -> None:
        self.manager, self.client = manager, client

    def begin(self, code: str) -> str:
        """Send a cell and return its id."""
        sent: str = self.client.execute(textwrap.dedent(code))
        return sent

    def until(self, wanted: str) -> None:
        """Wait until something is printed."""
        seen = ""
        while wanted not in seen:
            message = self.client.get_iopub_msg(timeout=GUARD_S)
            seen += message["content"].get("text", "") if message["msg_type"] == "stream" else ""

    def end(self, sent: str) -> tuple[str, str]:
        """Wait for a cell's end; return (ok or the name of its error, everything it printed).

        The status is the kernel's reply: IPython publishes no error whose traceback it cannot format.
        """
        text, idle = "", False
        while not idle:
            message = self.client.get_iopub_msg(timeout=GUARD_S)
            content = message["content"]
            ours = message["parent_header"].get("msg_id") == sent
            text += content["text"] if message["msg_type"] == "stream" else ""
            idle = ours and message["msg_type"] == "status" and content["execution_state"] == "idle"
        while True:
            reply = self.client.get_shell_msg(timeout=GUARD_S)
            if reply["parent_header"].get("msg_id") == sent:
                return reply["content"].get("ename", reply["content"]["status"]), text

    def run(self, code: str) -> str:
        """Run a cell that ends in order, and return what it printed."""
        status, text = self.end(self.begin(code))
        assert status == "ok", text
        return text


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    """A kernel with a scratch log and many operations."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    manager, client = start_new_kernel(kernel_name="python3", cwd=str(tmp_path))
    kernel = Kernel(manager, client)
    try:
        kernel.run(
            """
            import walkit
            from tests.workload.streams import seeded_stream
            from walkit.state import KeyedTable
            from walkit.workload import Workload, drive

            log = walkit.scratch("interrupted")
            stream = seeded_stream(200_000, value_bytes=10)
            """
        )
        yield kernel
    finally:
        client.stop_channels()
        manager.shutdown_kernel()


def test_a_stopped_drive_returns_the_partial_run(kernel: Kernel) -> None:
    """Press stop while 16 writers drive: the cell ends in order with a Run of that part, and the log takes the next."""
    sent = kernel.begin(
        """
        started = log.observe(lambda frames: (started.close(), print("first", flush=True)))
        run = drive(log, Workload(source=stream, writers=16), progress=False)
        """
    )
    kernel.until("first")
    kernel.manager.interrupt_kernel()
    status, printed = kernel.end(sent)
    assert status == "ok", printed
    said = kernel.run("print(run.interrupted, 0 < run.records < len(stream), run.records == log.acked_lsn)")
    assert said.endswith("True True True\n")
    assert kernel.run("print(log.append(b'next').first_lsn == run.records + 1)").endswith("True\n")
