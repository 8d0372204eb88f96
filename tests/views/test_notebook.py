"""A live view in a real kernel: it moves while a later cell blocks the kernel, and what it shows needs no network."""

from __future__ import annotations

import re

import nbformat
import pytest
from nbclient import NotebookClient

CELLS = (
    "import walkit\nlog = walkit.open('memory://cell')\nview = walkit.views.live(log)\nview",
    # Without a turn of the kernel's event loop: only a thread can move the view.
    (
        "import time\nseen, deadline = view.history.points_seen, time.monotonic() + 60\n"
        "while view.history.points_seen < seen + 2 and time.monotonic() < deadline:\n    log.append(b'x')\n"
        "assert view.history.points_seen >= seen + 2"
    ),
    "log.close()",
)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_a_view_in_a_cell_moves_and_needs_no_network() -> None:
    """Executed for real: the outputs hold Panel's own scripts, load none from elsewhere; the view saw the appends."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    outputs = str([cell.outputs for cell in notebook.cells])
    assert "plotly" in outputs
    assert len(outputs) > 1_000_000, "Panel's scripts are not in the outputs"
    listed = re.findall(r"(?:js|css)_urls\s*=\s*(\[[^\]]*\])", outputs)
    assert listed, "the lists of what is loaded from elsewhere look different now"
    assert [urls for urls in listed if "http" in urls] == []
