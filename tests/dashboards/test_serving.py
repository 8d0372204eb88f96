"""The literal command `panel serve dashboards/app.py`, from the checkout and from elsewhere, and what it leaves."""

from __future__ import annotations

import json
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.parse import urlencode, urlsplit

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


def test_beyond_this_machine_it_asks_for_a_password(tmp_path: Path) -> None:
    """Served on every address: without a password one page that says how, and no session; with one, the dashboard."""
    everywhere = ("--address", "0.0.0.0")
    with serve(*everywhere) as server:
        with urllib.request.urlopen(here(server.url), timeout=90) as answer:
            said = answer.read().decode()
        assert "The dashboard is not shown" in said
        assert "--basic-auth users.json" in said
        assert "listens on 0.0.0.0" in said
        assert server.folders() == []
    users = tmp_path / "users.json"
    users.write_text(json.dumps({"ann": "a long password"}))
    with serve(*everywhere, "--basic-auth", str(users), "--cookie-secret", "for this test") as server:
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        for password, shown in (("a wrong one", False), ("a long password", True)):
            given = urlencode({"username": "ann", "password": password}).encode()
            at_login = here(server.url).replace("/app", "/login")
            browser.open(at_login, data=given, timeout=90).close()
            assert bool(server.folders()) is shown
            with browser.open(here(server.url), timeout=90) as answer:
                assert (urlsplit(answer.url).path == "/app") is shown
                assert ("<title>walkit</title>" in answer.read().decode()) is shown


def here(url: str) -> str:
    """The address by which this machine reaches a server that listens on all."""
    return url.replace("0.0.0.0", "127.0.0.1")
