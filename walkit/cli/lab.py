"""JupyterLab's launcher tile: jupyter-server-proxy finds `launcher` by walkit's entry point, in the Lab server."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

ICON = Path(__file__).with_name("lab.svg")
START_S = 60.0
"""How long the dashboard may take to start on a busy machine."""

SOCKET_PATH_BYTES_MAX = 107
"""Longest path that a Unix socket can have on Linux (unix(7): 108 bytes with the zero at the end)."""
PROXY_SOCKET = "jupyter-server-proxy-abcdefgh/socket"
"""The length that jupyter-server-proxy adds to the temporary folder's path."""


def launcher() -> dict[str, Any]:
    """Return how jupyter-server-proxy serves the dashboard: at /walkit/ of the Lab server, to holders of its token.

    The dashboard listens on a Unix socket in a folder that only this user can open, and on no port: there is no way
    round the Lab server, which asks for the token and checks from which pages a websocket comes. It is started at the
    first visit and ends with the Lab server.
    """
    return {
        "command": [sys.executable, "-m", "walkit", "dashboard", "--socket", "{unix_socket}"],
        "unix_socket": short_socket() or True,
        "timeout": START_S,
        # JupyterLab draws icons of the category Notebook alone.
        "launcher_entry": {"title": "walkit", "icon_path": str(ICON), "category": "Notebook"},
    }


def short_socket() -> str | None:
    """Return a path for the dashboard's socket in a private folder of its own; None if the proxy's path will do.

    A long TMPDIR, as clusters and test runners have, makes the proxy's own path longer than a Unix socket's may be.
    The folder is removed when this process ends.
    """
    if len(os.fsencode(os.path.join(tempfile.gettempdir(), PROXY_SOCKET))) <= SOCKET_PATH_BYTES_MAX:
        return None
    folder = tempfile.mkdtemp(prefix="walkit-lab-", dir=os.environ.get("XDG_RUNTIME_DIR") or "/tmp")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return os.path.join(folder, "socket")
