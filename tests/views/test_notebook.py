"""A live view in a real kernel: it moves while a later cell blocks the kernel, and what it shows needs no network."""

from __future__ import annotations

import json
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
    """Executed for real: the widget brings plotly.js in its own state, and nothing is loaded from elsewhere."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    client = NotebookClient(notebook, timeout=120, kernel_name="python3")
    client.execute()
    assert "application/vnd.jupyter.widget-view+json" in notebook.cells[0].outputs[0]["data"]
    (state,) = [state for state in client.widget_state.values() if "plotly_js" in state]
    assert len(state["plotly_js"]) > 1_000_000, "plotly.js comes with the widget"
    assert not re.search(r"""import[^;]*["']https?:""", state["_esm"])
    assert "memory://" in state["status"] and "acked lsn" in state["numbers"]
    assert len(json.loads(state["figure"])["data"]) == 10
