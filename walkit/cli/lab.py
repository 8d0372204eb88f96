"""JupyterLab's launcher tile: jupyter-server-proxy finds `launcher` by walkit's entry point, in the Lab server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ICON = Path(__file__).with_name("lab.svg")
START_S = 60.0
"""How long the dashboard may take to start on a busy machine."""


def launcher() -> dict[str, Any]:
    """Return how jupyter-server-proxy serves the dashboard: at /walkit/ of the Lab server, to holders of its token.

    The dashboard listens on a Unix socket in a folder that only this user can open, and on no port: there is no way
    round the Lab server, which asks for the token and checks from which pages a websocket comes. It is started at the
    first visit and ends with the Lab server.
    """
    return {
        "command": [sys.executable, "-m", "walkit", "dashboard", "--socket", "{unix_socket}"],
        "unix_socket": True,
        "timeout": START_S,
        # JupyterLab draws icons of the category Notebook alone.
        "launcher_entry": {"title": "walkit", "icon_path": str(ICON), "category": "Notebook"},
    }
