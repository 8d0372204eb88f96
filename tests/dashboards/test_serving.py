"""`panel serve` of the app from elsewhere and for others: access, and cleanup."""

from __future__ import annotations

import json
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from scripts.browsing import serve

EVERYWHERE = ("--address", "0.0.0.0")


def test_beyond_this_machine_it_asks_for_a_password() -> None:
    """Served on every address without a password: one page that says how, and no session."""
    with serve(*EVERYWHERE) as server:
        with urllib.request.urlopen(here(server.url), timeout=90) as answer:
            said = answer.read().decode()
        assert "The dashboard is not shown" in said
        assert "--basic-auth users.json" in said
        assert "listens on 0.0.0.0" in said
        assert server.folders() == []


def test_with_a_password_it_is_served_and_leaves_nothing(tmp_path: Path) -> None:
    """A wrong password and the right one: a session with a folder, which SIGTERM removes."""
    users, cwd = tmp_path / "users.json", tmp_path / "elsewhere"
    users.write_text(json.dumps({"ann": "a long password"}))
    cwd.mkdir()
    options = (*EVERYWHERE, "--basic-auth", str(users), "--cookie-secret", "for this test")
    with serve(*options, cwd=cwd) as server:
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        for password, shown in (("a wrong one", False), ("a long password", True)):
            given = urlencode({"username": "ann", "password": password}).encode()
            at_login = here(server.url).replace("/app", "/login")
            browser.open(at_login, data=given, timeout=90).close()
            assert bool(server.folders()) is shown
            with browser.open(here(server.url), timeout=90) as answer:
                assert (urlsplit(answer.url).path == "/app") is shown
                said = answer.read().decode()
                # Without scripts the page explains itself.
                assert all(
                    (words in said) is shown for words in ("<title>walkit</title>", "walkit inspect LOG")
                )
        server.process.terminate()
        server.process.wait(60)
        assert server.folders() == []
        assert not [line for line in server.said if "Traceback" in line]
    assert list(cwd.iterdir()) == []


def here(url: str) -> str:
    """The address by which this machine reaches a server that listens on all."""
    return url.replace("0.0.0.0", "127.0.0.1")
