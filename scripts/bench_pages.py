#!/usr/bin/env python3
"""Measure how soon the dashboard is interactive, and the CPU of an open page.

Cold: a new browser on a server that has just started; warm: another window of that browser. Interactive: the button
Start can be pressed and the first figure is drawn. Slowed: with the browser's processor six times slower and writers at
work, the seconds from a click to its page, and from a picture's arrival on Live until it is drawn.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if not __package__:  # run as a script: use the checkout, installed or not
    sys.path.insert(0, str(ROOT))

import psutil  # noqa: E402

from scripts.browsing import (  # noqa: E402
    APP,
    SLOWED,
    WATCHED,
    Seen,
    clicks_s,
    find_browser,
    look_at,
    open_browser,
    serve,
    slowed,
)

WATCHED_S = 20.0
"""How long an open page's cost is measured."""
LAGS = 10
"""Pictures in a round whose lag counts, at least."""


def bytes_of(seen: Seen) -> int:
    """Return the bytes on the wire of the page and all that it loads, without a cache."""
    client = seen.page.context.new_cdp_session(seen.page)
    sizes: list[int] = []
    client.on("Network.loadingFinished", lambda told: sizes.append(int(told["encodedDataLength"])))
    client.send("Network.enable")
    client.send("Network.setCacheDisabled", {"cacheDisabled": True})
    seen.page.reload()
    seen.page.get_by_role("button", name="Start", exact=True).click(trial=True)
    seen.page.locator(".js-plotly-plot .main-svg").first.wait_for()
    client.detach()
    return sum(sizes)


def one_round(app: Path, browser_path: str, warm: int) -> tuple[float, list[float], int]:
    """Return seconds until a page is interactive, cold and then warm, and its bytes."""
    with serve(app=app) as server, open_browser(browser_path) as browser:
        first = look_at(browser, server.url)
        context = first.page.context
        again = []
        for _ in range(warm):
            # The same browser's cache, and a session of its own.
            page = context.new_page()
            began = time.monotonic()
            page.goto(server.url)
            page.get_by_role("button", name="Start", exact=True).click(trial=True)
            page.locator(".js-plotly-plot .main-svg").first.wait_for()
            again.append(time.monotonic() - began)
            page.close()
        return first.ready_s, again, bytes_of(first)


def costs(browser_path: str) -> dict[str, Any]:
    """Return the cost of an open Live page: idle, and per update while its writers barely write."""
    with serve() as server, open_browser(browser_path) as browser:
        seen = look_at(browser, server.url + "?page=live&arrivals=100&writers=2", width=1440, height=900)
        process = psutil.Process(server.process.pid)

        def spent() -> float:
            times = process.cpu_times()
            return float(times.user + times.system)

        time.sleep(3.0)  # what loading has left to do is done
        before = spent()
        time.sleep(WATCHED_S)
        idle_s = spent() - before
        seen.page.locator(".js-plotly-plot").first.evaluate(
            "element => { window.redraws = 0; element.on('plotly_afterplot', () => window.redraws++) }"
        )
        seen.press("Start")
        seen.page.wait_for_function("window.redraws > 10")
        before, drawn = spent(), seen.page.evaluate("window.redraws")
        time.sleep(WATCHED_S)
        busy_s, updates = spent() - before, seen.page.evaluate("window.redraws") - drawn
        seen.press("Stop")
    return {
        "idle": idle_s / WATCHED_S,
        "update_ms": 1000 * (busy_s - idle_s) / max(updates, 1),
        "updates": updates,
    }


def slowed_page(browser_path: str, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of the clicks to each page of a slowed browser, and the lags of its pictures on Live."""
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        with serve() as server, open_browser(browser_path) as browser:
            seen = look_at(browser, server.url + "?page=live&arrivals=200", width=1440, height=900)
            seen.press("Start")
            with slowed(seen):
                seen.page.evaluate(WATCHED)
                seen.page.wait_for_function(f"window.lags.length >= {LAGS}")
                lags = seen.page.evaluate("window.lags")
                found.setdefault("pictures on Live", []).extend(each / 1000 for each in lags)
                for name, seconds in clicks_s(seen).items():
                    found.setdefault(f"a click to {name}", []).append(seconds)
            seen.press("Stop")
    return found


def spread(seconds: list[float]) -> str:
    """Return the median, the least, the most and n."""
    return f"{statistics.median(seconds):.2f} s, {min(seconds):.2f} to {max(seconds):.2f}, n = {len(seconds)}"


def main(arguments: list[str] | None = None) -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="times that the page is loaded cold")
    parser.add_argument("--warm", type=int, default=3, help="times that it is loaded warm in a round")
    asked = parser.parse_args(arguments)
    browser = find_browser()
    if browser is None:
        print("no Chromium on this machine: install it first", file=sys.stderr)
        return 1
    cold: list[float] = []
    warm: list[float] = []
    size = 0
    for _ in range(asked.rounds):
        first, again, size = one_round(APP, browser, asked.warm)
        cold.append(first)
        warm += again
    for kind, seconds in (("cold", cold), ("warm", warm)):
        print(f"{kind}: {spread(seconds)}")
    print(f"bytes: {size / 1e6:.2f} MB")
    found = costs(browser)
    print(f"idle: {found['idle']:.1%} of a core over {WATCHED_S:.0f} s")
    print(f"update: {found['update_ms']:.0f} ms of the server's time, {found['updates']} of them")
    for what, seconds in slowed_page(browser, asked.rounds).items():
        print(f"slowed {SLOWED} times, {what}: {spread(seconds)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
