"""The dashboard in a headless Chromium: it works without a network, does what its buttons say, and mixes nobody up."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from scripts.browsing import Seen, Server, look_at

if TYPE_CHECKING:
    from playwright.sync_api import Browser

LIVE_S = 5.0
"""A page that takes longer to be of use on a quiet machine is too slow; on a busy one it is only reported."""
CURVES = """element => element.data.map(
    curve => [curve.name, Array.from(curve.y ?? [], y => Number.isFinite(y) ? y : null)])"""
VIEW = "element => [element.data[0].x.at(-1), element._fullLayout.xaxis.range[1]]"
TEXTS = """elements => elements.map(element => Array.from(element.shadowRoot.children)
    .filter(part => part.tagName == "DIV").map(part => part.innerText).join(" "))"""


@contextmanager
def looking(browser: Browser, server: Server) -> Iterator[Seen]:
    """A window on the dashboard. At its end nothing may have been asked of others, and nothing complained of."""
    seen = look_at(browser, server.url)
    try:
        yield seen
        assert seen.outside == []
        assert seen.complaints == []
        assert len(seen.requests) > 10, "the collector of requests saw nothing"
    finally:
        print(f"outside requests {seen.outside}, complaints {seen.complaints}")  # shown where anything fails
        seen.page.context.close()


def eventually(what: Callable[[], Any], seconds: float = 90.0) -> Any:
    """What `what` returns once that is true; AssertionError where it never is."""
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, f"never true within {seconds} s"
        time.sleep(0.1)
    return found


def curves(seen: Seen, plot: int = 0) -> dict[str, list[Any]]:
    """The figure's data, as the browser has it: curve by name."""
    return dict(seen.page.locator(".js-plotly-plot").nth(plot).evaluate(CURVES))


def text(seen: Seen) -> str:
    """Everything that can be read on the page, in the part that is not turned to too."""
    return " ".join(seen.page.locator(".bk-panel-models-markup-HTML").evaluate_all(TEXTS))


def writers(server: Server) -> list[int]:
    """Process ids of the child writers of a server."""
    return [child.pid for child in psutil.Process(server.process.pid).children(recursive=True)]


def test_start_writes_and_stop_ends_it(browser: Browser, server: Server, record_property: Any) -> None:
    """Start: curves of throughput, latency, queue and frames grow; Stop: the page says so, and no child is left."""
    with looking(browser, server) as seen:
        record_property("ready_s", seen.ready_s)
        print(f"interactive after {seen.ready_s:.1f} s (wanted: {LIVE_S:.0f} s on a quiet machine)")
        assert curves(seen)["records/s"] == []
        assert "Nothing has been written yet" in text(seen)
        seen.press("Start")
        eventually(lambda: len([y for y in curves(seen)["records/s"] if y]) >= 4)
        found = curves(seen)
        for name in (
            "p50",
            "p99",
            "max",
            "records that wait",
            "records a frame, mean",
            "bytes a frame, mean",
        ):
            assert len([y for y in found[name] if y is not None]) >= 3, name
        p50, p99 = ([y for y in found[name] if y] for name in ("p50", "p99"))
        assert all(low <= high for low, high in zip(p50, p99, strict=True))
        newest_s, end_s = seen.page.locator(".js-plotly-plot").nth(0).evaluate(VIEW)
        assert newest_s - 5 < end_s, "the newest part is out of the view"
        assert len(writers(server)) == 1
        assert "8 writer threads, 100 bytes a record, durability sync" in text(seen)
        eventually(lambda: curves(seen)["events"])  # a segment was made
        seen.press("Stop")
        eventually(lambda: "Nothing is being written." in text(seen))
        assert writers(server) == []


def test_kill_and_recover_shows_what_became_of_the_log(browser: Browser, server: Server) -> None:
    """The button kills a child and recovers: bars of the phases, the cut with its reason, nothing acknowledged lost."""
    with looking(browser, server) as seen:
        seen.turn_to("Recovery")
        seen.press("Kill and recover")
        seen.page.locator(".cuts table").wait_for()
        assert "Every record that was known to be acknowledged is there." in text(seen)
        row = seen.page.locator(".cuts table tr").nth(1).inner_text()
        assert "checksum" in row
        assert "lost+found/" in row
        phases = seen.page.locator(".js-plotly-plot").nth(1)
        # The browser draws the figure in its own time, the tables before it or behind it.
        eventually(lambda: "ready" in str(phases.evaluate("element => element.data.map(trace => trace.y)")))
        bars, cut, _ = phases.evaluate("element => element.data")
        assert (bars["type"], cut["name"]) == ("bar", "cut")
        assert bars["y"][:2] == ["open", "scan"]
        assert bars["y"][-1] == "ready"
        assert writers(server) == []
        seen.turn_to("Live")
        plot = seen.page.locator(".js-plotly-plot").nth(0)
        eventually(lambda: "walkit.recovery.cut" in str(plot.evaluate("element => element.data.at(-1).text")))
        assert "SIGKILL" in str(plot.evaluate("element => element.data.at(-1).text"))
        acked = re.search(r"acked LSN before the kill\s*([\d,]+)", text(seen))
        assert acked is not None
        assert int(acked[1].replace(",", "")) >= 200


def test_two_sessions_do_not_mix(browser: Browser, server: Server) -> None:
    """Two windows: each has its log, its settings and its writers; closing one ends its own and leaves the other's."""
    eventually(lambda: server.folders() == [])
    with looking(browser, server) as first, looking(browser, server) as second:
        assert len(server.folders()) == 2
        first.press("Start")
        eventually(lambda: len(curves(first)["records/s"]) > 2)
        assert "Nothing has been written yet" in text(second)
        assert curves(second)["records/s"] == []
        second.press("asyncio tasks")
        second.page.get_by_label("bytes a record").fill("5000")
        second.page.keyboard.press("Enter")
        second.press("Start")
        eventually(lambda: len(curves(second)["records/s"]) > 2)
        assert "8 asyncio tasks, 5,000 bytes a record" in text(second)
        assert "8 writer threads, 100 bytes a record" in text(first)
        assert len(writers(server)) == 2
        second.page.close()
        eventually(lambda: len(server.folders()) == 1 and len(writers(server)) == 1)
        seen = len(curves(first)["records/s"])
        eventually(lambda: len(curves(first)["records/s"]) > seen)
    eventually(lambda: server.folders() == [] and writers(server) == [])


def test_what_goes_wrong_is_a_sentence(browser: Browser, server: Server) -> None:
    """A file where the log should be, and a number of writers that is none: the page says so, and goes on."""
    eventually(lambda: server.folders() == [])
    with looking(browser, server) as seen:
        (folder,) = server.folders()
        (folder / "log").write_text("not a log")
        seen.press("Start")
        alert = seen.page.get_by_role("alert").first
        alert.wait_for()
        assert "Starting the writers failed" in alert.inner_text()
        assert "NotALogError" in alert.inner_text()
        (folder / "log").unlink()
        seen.press("Start")
        eventually(lambda: len(curves(seen)["records/s"]) > 1)
        alert.wait_for(state="detached")


def heap_bytes(seen: Seen) -> int:
    """Bytes that the page's JavaScript holds, after collecting garbage."""
    session = seen.page.context.new_cdp_session(seen.page)
    session.send("HeapProfiler.collectGarbage")
    used = session.send("Runtime.getHeapUsage")["usedSize"]
    session.detach()
    return int(used)


@pytest.mark.parametrize(
    ("warm_up", "updates"),
    [(10, 30), pytest.param(240, 600, marks=pytest.mark.slow)],
    ids=["short", "minutes"],
)
@pytest.mark.timeout(900)
def test_live_updates_keep_memory_flat(
    browser: Browser, server: Server, warm_up: int, updates: int, record_property: Any
) -> None:
    """Redraws are counted in the browser: its heap and the server's memory do not grow from update to update."""
    with looking(browser, server) as seen:
        plot = seen.page.locator(".js-plotly-plot").nth(0)
        plot.evaluate(
            "element => { window.redraws = 0; element.on('plotly_afterplot', () => window.redraws++) }"
        )
        seen.press("Start")
        measured = []
        for wanted in (warm_up, warm_up + updates):
            enough = f"window.redraws >= {wanted}"
            eventually(partial(seen.page.evaluate, enough), 3 * wanted + 60)
            rss = psutil.Process(server.process.pid).memory_info().rss
            measured.append((heap_bytes(seen), rss))
        grown = [(after - before) / 2**20 for before, after in zip(*measured, strict=True)]
        record_property("grown_mib", grown)
        print(f"{updates} updates: the page grew by {grown[0]:.1f} MiB, the server by {grown[1]:.1f} MiB")
        assert grown[0] < 8
        assert grown[1] < 40
        seen.press("Stop")
        eventually(lambda: "Nothing is being written." in text(seen))


def test_compaction_shows_segments_holds_and_what_a_step_did(browser: Browser, server: Server) -> None:
    """Write, hold and compact by the buttons: the figure has the segments and the hold, the table before and after."""
    with looking(browser, server) as seen:
        seen.turn_to("Compaction")
        for label, words in (
            ("Write records", "were written"),
            ("Take or release a hold", "The hold needs LSN"),
            ("Compact", "bytes are gone"),
        ):
            seen.press(label)
            eventually(partial(lambda wanted: wanted in text(seen), words))
        seen.page.locator(".steps table").wait_for()
        # As above: the figure may come behind the table.
        eventually(lambda: {"sealed", "compacted", "live", "held"} <= set(curves(seen, 3)))
        assert "bytes of the segments" in seen.page.locator(".steps table").inner_text()
