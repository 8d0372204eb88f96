"""The launcher tile of JupyterLab: the dashboard behind Lab's token, with a websocket, and not without the token."""

from __future__ import annotations

import importlib.metadata
import json
import os
import stat
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import psutil
import pytest

from tests.lab.labs import GUARD_S, Served, dashboards
from walkit.cli.lab import launcher

if TYPE_CHECKING:
    from playwright.sync_api import Browser

HANDSHAKE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "MDEyMzQ1Njc4OWFiY2RlZg==",
}


def test_the_entry_point_names_the_launcher() -> None:
    """The installed entry point names the function, whose icon is a drawing in the package."""
    (found,) = importlib.metadata.entry_points(group="jupyter_serverproxy_servers", name="walkit")
    assert found.load() is launcher
    icon = Path(launcher()["launcher_entry"]["icon_path"])
    assert icon.read_text().startswith("<svg ")


def asked(url: str, path: str, headers: dict[str, str]) -> HTTPResponse:
    """Ask for a path, with these headers and no others that matter."""
    connection = HTTPConnection(urlsplit(url).netloc, timeout=GUARD_S)
    try:
        connection.request("GET", path, headers=headers)
        return connection.getresponse()
    finally:
        connection.close()


def assert_on_a_socket_of_ours() -> None:
    """One dashboard runs, listens at no port, and has its socket in a folder that only this user may enter."""
    (dashboard,) = dashboards()
    assert [c for c in dashboard.net_connections("inet") if c.status == psutil.CONN_LISTEN] == []
    path = dashboard.cmdline()[-1]
    assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700


@pytest.mark.parametrize("path", ["/walkit/", "/walkit/ws"])
@pytest.mark.parametrize("headers", [{}, {"Authorization": "token wrong"}], ids=["none", "wrong"])
def test_without_the_token_nothing_is_served(served: Served, path: str, headers: dict[str, str]) -> None:
    """Ask for the page and for its websocket without a token and with a wrong one: refused, and nothing is started."""
    more = {**HANDSHAKE, "Origin": served.url} if path.endswith("ws") else {}
    answer = asked(served.url, path, {**headers, **more})
    sent_away = answer.status == 302 and "/login" in str(answer.getheader("Location"))
    assert sent_away or answer.status in (401, 403)
    assert dashboards() == []


# Slow: a browser takes 30 s for Lab and the page. The test below asks for the tile and its address without one.
@pytest.mark.slow
def test_the_tile_opens_the_dashboard(browser: Browser, served: Served) -> None:
    """Press the tile: the page answers by its websocket, all through Lab's address, on a socket that is only ours."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    context.set_default_timeout(GUARD_S * 1000)
    page = context.new_page()
    page.goto(f"{served.url}/lab?token={served.token}")
    tile = page.locator(".jp-LauncherCard", has_text="walkit")
    drawn = tile.locator("img")
    drawn.wait_for()
    page.wait_for_function("image => image.complete && image.naturalWidth > 0", arg=drawn.element_handle())
    complaints: list[str] = []
    sockets: list[str] = []
    frames: list[str] = []
    requests: list[str] = []
    context.on("request", lambda request: requests.append(request.url))
    with context.expect_page() as opened:
        tile.click()
    window = opened.value
    window.on("pageerror", lambda error: complaints.append(str(error)))
    window.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)

    def heard(socket: object) -> None:
        sockets.append(socket.url)  # type: ignore[attr-defined]
        socket.on("framereceived", lambda data: frames.append(str(data)[:80]))  # type: ignore[attr-defined]

    window.on("websocket", heard)
    window.get_by_role("button", name="Load", exact=True).click()
    window.get_by_label("arrivals/s", exact=True).wait_for()  # the server has sent the controls of the drawer
    assert window.url.partition("?")[0] == f"{served.url}/walkit/"
    assert sockets == [f"{served.url.replace('http', 'ws')}/walkit/ws"]
    assert len(frames) > 2
    assert complaints == []
    assert all(url.startswith((served.url, "data:", "blob:")) for url in requests)
    assert_on_a_socket_of_ours()
    context.close()


def test_the_tile_and_its_page_are_served_to_the_token(served: Served) -> None:
    """Ask Lab for its tiles and then for walkit's page, with the token: both come, from a socket that is only ours."""

    def answer(path: str) -> bytes:
        request = Request(served.url + path, headers={"Authorization": f"token {served.token}"})
        with urlopen(request, timeout=GUARD_S) as found:
            return bytes(found.read())

    tiles = json.loads(answer("/server-proxy/servers-info"))["server_processes"]
    (tile,) = (tile["launcher_entry"] for tile in tiles if tile["name"] == "walkit")
    assert tile["enabled"] and tile["title"] == "walkit"
    assert answer(tile["icon_url"].removeprefix(served.url)).startswith(b"<svg ")
    assert b"<title>walkit</title>" in answer("/walkit/")
    assert_on_a_socket_of_ours()


def test_a_page_of_another_place_gets_no_websocket(served: Served) -> None:
    """With the cookie of a login, a handshake from Lab's own pages is taken and one of another site is refused."""
    welcome = asked(served.url, f"/lab?token={served.token}", {})
    cookie = "; ".join(value.split(";")[0] for value in welcome.headers.get_all("Set-Cookie", []))
    for origin, code in ((served.url, 101), ("http://elsewhere.example", 403)):
        headers = {**HANDSHAKE, "Cookie": cookie, "Origin": origin}
        assert asked(served.url, "/walkit/ws", headers).status == code, origin
