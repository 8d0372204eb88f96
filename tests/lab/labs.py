"""A real JupyterLab, served for as long as a test looks at it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

ROOT = Path(__file__).resolve().parents[2]
GUARD_S = 120.0


@contextmanager
def lab(folder: Path, *, token: str = "") -> Iterator[str]:
    """Serve a folder in JupyterLab, and give its address; without a token everybody may come in."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = (
        *(
            "--no-browser",
            "--allow-root",
            "--ip=127.0.0.1",
            f"--port={port}",
            f"--IdentityProvider.token={token}",
        ),
        *("--ServerApp.password=", "--LabApp.news_url=", "--LabApp.expose_app_in_browser=True"),
        f"--LabApp.user_settings_dir={folder / 'settings'}",
    )
    found = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    variables = {"PYTHONPATH": found, "IPYTHONDIR": str(folder / "ipython"), "TMPDIR": str(folder)}
    with (folder / "lab.log").open("w") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "jupyter", "lab", *options],
            cwd=folder,
            env=os.environ | variables,
            stdout=said,
            stderr=subprocess.STDOUT,
        )
        try:
            url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + GUARD_S
            while not _answers(f"{url}/api/status?token={token}"):
                assert process.poll() is None, (folder / "lab.log").read_text()
                assert time.monotonic() < deadline, (folder / "lab.log").read_text()
            yield url
        except BaseException as error:
            error.add_note(f"JupyterLab said:\n{(folder / 'lab.log').read_text()[-10_000:]}")
            raise
        finally:
            process.terminate()
            process.wait(GUARD_S)


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def write_settings(folder: Path, theme: str) -> None:
    """Choose a theme, and no news."""
    for plugin, settings in (
        ("apputils-extension/themes", {"theme": f"JupyterLab {theme}"}),
        ("apputils-extension/notification", {"fetchNews": "false", "checkForUpdates": False}),
    ):
        name, _, part = plugin.partition("/")
        path = folder / "settings" / "@jupyterlab" / name / f"{part}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(settings))
