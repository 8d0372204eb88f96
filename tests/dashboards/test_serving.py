"""The literal command `panel serve dashboards/app.py`, from the checkout and from elsewhere, and what it leaves."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import psutil
import pytest

from scripts.browsing import APP, ROOT, serve


@pytest.mark.parametrize("elsewhere", [False, True], ids=["root", "elsewhere"])
def test_the_command_serves_the_page_and_leaves_nothing(elsewhere: bool, tmp_path: Path) -> None:
    """Asked for its page, the server has a session with a folder; ended with SIGTERM, it has removed it."""
    cwd, app = (tmp_path, str(APP)) if elsewhere else (ROOT, "dashboards/app.py")
    with serve(cwd=cwd, app=app) as server:
        with urllib.request.urlopen(server.url, timeout=90) as answer:
            assert answer.status == 200
            assert "<title>walkit</title>" in answer.read().decode()
        assert len(server.folders()) == 1
        server.process.terminate()
        server.process.wait(60)
        assert server.folders() == []
        assert not psutil.pid_exists(server.process.pid) or server.process.returncode is not None
        assert not [line for line in server.said if "Traceback" in line]
    assert list(tmp_path.iterdir()) == []
