"""The dashboard in a headless Chromium: it works without a network, its buttons work, and sessions are apart."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from scripts.browsing import ROOT, WATCHED, Seen, Server, clicks_s, look_at, slowed
from scripts.screenshots import FOLDER, RECORD, controls_of_pages
from walkit.views.page import PAGES

if TYPE_CHECKING:
    from playwright.sync_api import Browser

FRAMES, RATES, LATENCY = range(3)
"""Figures of the Live page."""
LIVE_S = 5.0
"""A page that takes longer to be of use on a quiet machine is too slow; on a busy one it is only reported."""
ARRIVALS = 200
"""Records per second, unless a test says otherwise: the tests look at the views, not at the writers."""
CURVES = """element => (element.data ?? []).map(
    curve => [curve.name, Array.from(curve.y ?? [], y => Number.isFinite(y) ? y : null)])"""
VIEW = "element => [element.data[0].x.at(-1), element._fullLayout.xaxis.range[1]]"
RANGES = "element => element.layout.meta.clock.map(name => [...element._fullLayout[name].range])"
LANES = """element => Array.from(element.data.find(curve => curve.name == "write and sync").y)"""
COUNT_REDRAWS = "element => { window.redraws = 0; element.on('plotly_afterplot', () => window.redraws++) }"
CROSSHAIRS = """() => {
    const found = [];
    const look = root => { for (const each of root.querySelectorAll("*")) {
        if (each.walkitLines) found.push(each.walkitLines.filter(line => !line.hidden).length);
        if (each.shadowRoot) look(each.shadowRoot);
    } };
    look(document);
    return found;
}"""
"""How many lines each figure's crosshair has just now."""
CUT = """() => {
    const found = [];
    const look = root => { for (const each of root.querySelectorAll("*")) {
        if (each.classList.contains("js-plotly-plot")) {
            const box = each.getBoundingClientRect();
            for (const word of each.querySelectorAll(".main-svg text")) {
                const at = word.getBoundingClientRect();
                const shown = at.width && getComputedStyle(word).visibility != "hidden";
                if (shown && (at.left < box.left - 3 || at.right > box.right + 3)) found.push(word.textContent);
            }
        }
        if (each.shadowRoot) look(each.shadowRoot);
    } };
    look(document);
    return found;
}"""
"""The words of figures that are wider than their figure."""
LEGEND = """element => {
    const at = name => element.querySelector(name).getBoundingClientRect();
    return [at(".main-svg").width, at(".legend").top - at(".xtitle").bottom];
}"""
"""How wide a figure is drawn, and how far its legend is below the title of its axis."""
UNDRAWN = """async () => {
    const wrong = [];
    const models = [...Bokeh.documents[0]._all_models.values()];
    const wanted = {value: "1", disabled: true, placeholder: "1", options: [["1", "1"]], label: "1", width: 33};
    for (const type of new Set(models.map(model => model.type))) {
        const like = models.find(model => model.type === type);
        const View = like.constructor.prototype.default_view;
        const widget = ["value", "label", "active"].some(name => name in like.properties);
        if (!View || !widget) continue;
        for (const [name, value] of Object.entries(wanted)) {
            if (!(name in like.properties)) continue;
            const model = like.clone();
            const view = new View({model, parent: null});
            view.initialize();
            await view.lazy_initialize();
            view.connect_signals();
            try { model[name] = typeof model[name] === "number" ? model[name] + 1 : value; } catch (error) {
                if (error instanceof TypeError) wrong.push(`${type}.${name}: ${error}`);
            }
        }
    }
    return wrong;
}"""
"""Finds errors if a model of each kind on the page changes between the making of its view and its drawing."""
TEXTS = """elements => elements.map(element => Array.from(element.shadowRoot.children)
    .filter(part => part.tagName == "DIV").map(part => part.innerText).join(" "))"""


@contextmanager
def looking(
    browser: Browser, server: Server, windows: list[Seen] | None = None, **look: Any
) -> Iterator[Seen]:
    """A window on the dashboard. At its end nothing may have been asked of others, and nothing complained of.

    With `windows` it is the one that the test before has left, and is left to the next test where this one passes: its
    session goes on, with nothing being written.
    """
    seen = (
        windows.pop() if windows else look_at(browser, f"{server.url}?page=live&arrivals={ARRIVALS}", **look)
    )
    left = False
    try:
        yield seen
        assert seen.outside == []
        assert seen.complaints == []
        assert len(seen.requests) > 10, "the collector of requests saw nothing"
        if windows is not None:
            assert writers(server) == []
            windows.append(seen)
            left = True
    finally:
        print(f"outside requests {seen.outside}, complaints {seen.complaints}")  # shown where anything fails
        if not left:
            seen.page.context.close()


@pytest.fixture(scope="module")
def windows(browser: Browser) -> Iterator[list[Seen]]:
    """The window that tests hand on, once there is one: to open another takes longer than most tests."""
    left: list[Seen] = []
    yield left
    for seen in left:
        seen.page.context.close()


@pytest.mark.slow
def test_the_screenshots_are_current(browser: Browser, server: Server, windows: list[Seen]) -> None:
    """Turn to each page: its controls are those that were recorded when README's pictures were taken."""
    with looking(browser, server, windows) as seen:
        assert controls_of_pages(seen) == RECORD.read_text(encoding="utf-8"), "run `make screenshots`"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"dashboards/screenshots/(\w+\.png)", readme)
    assert sorted(set(shown)) == sorted(path.name for path in FOLDER.glob("*.png"))


def eventually(what: Callable[[], Any], seconds: float = 90.0) -> Any:
    """Return the first true result of `what`; AssertionError without one."""
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, f"never true within {seconds} s"
        time.sleep(0.1)
    return found


def curves(seen: Seen, plot: int = RATES) -> dict[str, list[Any]]:
    """The figure's data, as the browser has it: curve by name."""
    return dict(seen.page.locator(".js-plotly-plot").nth(plot).evaluate(CURVES))


def text(seen: Seen) -> str:
    """Everything that can be read on the page, in the part that is not turned to too."""
    return " ".join(seen.page.locator(".bk-panel-models-markup-HTML").evaluate_all(TEXTS))


def ask_for(seen: Seen, label: str, number: int) -> None:
    """Type a number into a field."""
    open_drawer(seen, "Load")
    seen.page.get_by_label(label, exact=True).fill(str(number))
    seen.page.keyboard.press("Enter")


def open_drawer(seen: Seen, name: str) -> None:
    """Show the controls of a drawer of the Live page, if that page is shown."""
    drawer = seen.page.get_by_role("button", name=name, exact=True)
    if drawer.count() and "bk-active" not in str(drawer.get_attribute("class")):
        drawer.click()


def on_live(seen: Seen) -> int:
    """Turn to the Live page, and return how many points its first figure has once it is drawn."""
    seen.turn_to("Live")
    eventually(lambda: "records/s" in curves(seen) and "p99" in curves(seen, LATENCY))
    return len(curves(seen)["records/s"])


def stop(seen: Seen) -> None:
    """Stop the writers of the Live page, and wait for that."""
    seen.press("Stop")
    eventually(lambda: "Nothing is being written." in text(seen))


def writers(server: Server) -> list[int]:
    """Process ids of the child writers of a server."""
    return [child.pid for child in psutil.Process(server.process.pid).children(recursive=True)]


def test_start_writes_and_stop_ends_it(
    browser: Browser, server: Server, windows: list[Seen], record_property: Any
) -> None:
    """Preset, Start, Stop: curves, raw line, heat map, frames, cards; no child is left."""
    with looking(browser, server, windows) as seen:
        record_property("ready_s", seen.ready_s)
        print(f"interactive after {seen.ready_s:.1f} s (wanted: {LIVE_S:.0f} s on a quiet machine)")
        on_live(seen)
        assert curves(seen)["records/s"] == []
        # The page's first figures may be drawn before its first words have come.
        eventually(lambda: "Nothing has been written yet" in text(seen))
        seen.press("64 writers")
        eventually(lambda: "writers=64" in seen.page.evaluate("location.search"))
        ask_for(seen, "arrivals/s", ARRIVALS)
        seen.press("Start")
        # Each figure is drawn again for itself.
        eventually(
            lambda: all(
                len([y for y in curves(seen, plot)[name] if y]) >= 2
                for plot, name in ((RATES, "records/s"), (LATENCY, "p50"))
            )
        )
        rates, latency = curves(seen), curves(seen, LATENCY)
        for found, names in (
            (rates, ("frames/s", "raw device", "records that wait", "records per frame", "bytes per frame")),
            (latency, ("p50", "p99", "p99.9")),
        ):
            for name in names:
                assert [y for y in found[name] if y is not None], name
        pairs = zip(latency["p50"], latency["p99"], strict=True)
        assert all(low <= high for low, high in pairs if low is not None)
        lanes = seen.page.locator(".js-plotly-plot").nth(FRAMES).evaluate(LANES)
        assert lanes and set(lanes) == {"slot 1"}
        assert latency["records by latency"], "the heat map has no rows"
        newest_s, end_s = seen.page.locator(".js-plotly-plot").nth(RATES).evaluate(VIEW)
        assert newest_s - 5 < end_s, "the newest part is out of the view"
        assert len(writers(server)) == 1
        for words in ("64 threads, 100 B", "median of 5"):
            eventually(partial(lambda wanted: wanted in text(seen), words))
        assert seen.page.locator(".card .value").count() == 5
        eventually(lambda: curves(seen)["events"])  # a segment was made
        box = seen.page.locator(".js-plotly-plot").nth(RATES).bounding_box()
        assert box is not None
        seen.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 120)
        eventually(lambda: seen.page.evaluate(CROSSHAIRS) == [2, 1])
        seen.press("Pause")
        eventually(lambda: "Paused" in text(seen))
        seen.press("Pause")
        eventually(lambda: "Paused" not in text(seen))
        stop(seen)
        assert writers(server) == []
    assert not [line for line in server.said if "Traceback" in line]


# Slow: 10 s; it needs pictures that come while a figure is zoomed.
@pytest.mark.slow
def test_a_zoom_is_that_of_every_figure_and_stays(
    browser: Browser, server: Server, windows: list[Seen]
) -> None:
    """Drag over a part of one figure: every clock shows that part, also later; a double click shows all again."""
    with looking(browser, server, windows) as seen:
        before = on_live(seen)
        seen.press("Start")
        eventually(lambda: len(curves(seen)["records/s"]) > before + 4)
        plots = seen.page.locator(".js-plotly-plot")
        layer = plots.nth(LATENCY).locator(".nsewdrag").first
        layer.scroll_into_view_if_needed()
        box = layer.bounding_box()
        assert box is not None
        begin_s, end_s = plots.nth(LATENCY).evaluate(RANGES)[0]
        full_s = end_s - begin_s
        for share, act in ((0.3, seen.page.mouse.down), (0.7, seen.page.mouse.up)):
            seen.page.mouse.move(box["x"] + share * box["width"], box["y"] + box["height"] / 2, steps=5)
            act()
        chosen = plots.nth(LATENCY).evaluate(RANGES)
        assert chosen[0][1] - chosen[0][0] < 0.6 * full_s
        eventually(lambda: plots.nth(RATES).evaluate(RANGES) == chosen * 2)
        drawn = len(curves(seen)["records/s"])
        eventually(lambda: len(curves(seen)["records/s"]) > drawn + 2)
        assert [plots.nth(plot).evaluate(RANGES) for plot in (RATES, LATENCY)] == [chosen * 2, chosen]
        layer.dblclick()
        eventually(lambda: all(end - begin > full_s for begin, end in plots.nth(RATES).evaluate(RANGES)))
        assert all(end - begin > full_s for begin, end in plots.nth(LATENCY).evaluate(RANGES))
        stop(seen)


# Slow: 16 pictures. views/test_history bounds the points that a server keeps.
@pytest.mark.slow
def test_memory_is_flat_while_pictures_come(browser: Browser, server: Server, windows: list[Seen]) -> None:
    """Write for six pictures and for ten more: the page and the server hold little more than before."""
    with looking(browser, server, windows) as seen:
        on_live(seen)
        seen.page.locator(".js-plotly-plot").nth(FRAMES).evaluate(COUNT_REDRAWS)
        seen.press("Start")
        measured = []
        for wanted in (6, 16):
            eventually(partial(seen.page.evaluate, f"window.redraws >= {wanted}"), 3 * wanted + 60)
            measured.append((heap_bytes(seen), psutil.Process(server.process.pid).memory_info().rss))
        grown = [(after - before) / 2**20 for before, after in zip(*measured, strict=True)]
        print(f"the page grew by {grown[0]:.1f} MiB, the server by {grown[1]:.1f} MiB")
        assert grown[0] < 8
        assert grown[1] < 40
        stop(seen)


# The test above stands still unless the browser acknowledges its pictures; views/test_pacing holds the rule.
@pytest.mark.slow
def test_a_slow_browser_keeps_up(browser: Browser, server: Server, windows: list[Seen]) -> None:
    """Slow the page six times while it shows writers: one picture at a time, and a click shows its page."""
    with looking(browser, server, windows) as seen:
        before = on_live(seen)
        seen.press("Start")
        eventually(lambda: len(curves(seen)["records/s"]) > before + 4)
        with slowed(seen):
            seen.page.evaluate(WATCHED)
            eventually(lambda: seen.page.evaluate("window.lags.length") >= 5)
            pictures, lags = seen.page.evaluate("[window.pictures, window.lags]")
            clicks = clicks_s(seen)
        # Not held to a limit: a core is shared with other tests. scripts/bench_pages.py measures both.
        print(f"clicks {clicks} s, pictures drawn in {lags} ms")
        assert max(sent - drawn for sent, drawn in pictures) == 1, (
            "a picture was sent before the last was drawn"
        )
        seen.turn_to("Live")
        stop(seen)


# Slow: 9 s. views/test_recovery does each fault on this page without a browser.
@pytest.mark.slow
def test_a_fault_shows_what_became_of_the_log(browser: Browser, server: Server, windows: list[Seen]) -> None:
    """Break a log by half a frame: bars of the phases, the cut with its reason, the row that applied, the bytes."""
    with looking(browser, server, windows) as seen:
        seen.turn_to("Recovery")
        seen.page.get_by_label("fault").select_option(label="half a frame")
        eventually(lambda: "fault=half-frame" in seen.page.evaluate("location.search"))
        seen.press("Break and recover")
        seen.page.locator(".cuts table").wait_for()
        assert "Every record that was known to be acknowledged is there." in text(seen)
        row = seen.page.locator(".cuts table tr").nth(1).inner_text()
        assert "checksum" in row
        assert "lost+found/" in row
        phases = seen.page.locator(".js-plotly-plot").nth(0)
        # The browser draws the figure in its own time, the tables before it or after it.
        eventually(
            lambda: "ready" in str(phases.evaluate("element => element.data.map(trace => trace.name)"))
        )
        bars = phases.evaluate("element => element.data.map(trace => [trace.name, trace.type, trace.x[0]])")
        assert [name for name, _, _ in bars][:2] == ["open", "scan"]
        assert all(kind == "bar" and seconds >= 0 for _, kind, seconds in bars)
        applied = seen.page.locator(".decisions tr[aria-current]")
        applied.wait_for()
        assert applied.count() == 1 and "▶ F" in applied.inner_text()
        assert writers(server) == []
        acked = re.search(r"acked LSN before the fault\s*([\d,]+)", text(seen))
        assert acked is not None
        assert int(acked[1].replace(",", "")) >= 200
        seen.turn_to("Live")
        plot = seen.page.locator(".js-plotly-plot").nth(RATES)
        eventually(
            lambda: "walkit.recovery.cut" in str(plot.evaluate("element => element.data?.at(-1)?.text"))
        )
        assert "SIGKILL" in str(plot.evaluate("element => element.data?.at(-1)?.text"))


@pytest.mark.slow
def test_two_sessions_do_not_mix(browser: Browser, server: Server, windows: list[Seen]) -> None:
    """Two windows: each has its log, its settings and its writers; closing one ends its own and leaves the other's."""
    with looking(browser, server, windows) as first, looking(browser, server) as second:
        before = on_live(first)
        eventually(lambda: len(server.folders()) == 2)
        ask_for(first, "writers or tasks", 8)
        first.press("Start")
        eventually(lambda: len(curves(first)["records/s"]) > before + 2)
        assert "Nothing has been written yet" in text(second)
        assert curves(second)["records/s"] == []
        open_drawer(second, "Load")
        second.page.get_by_label("who appends").select_option("asyncio tasks")
        ask_for(second, "bytes per record", 5000)
        second.press("Start")
        eventually(lambda: len(curves(second)["records/s"]) > 2)
        assert "8 tasks, 5,000 B" in text(second)
        assert "8 threads, 100 B" in text(first)
        assert len(writers(server)) == 2
        second.page.close()
        eventually(lambda: len(server.folders()) == 1 and len(writers(server)) == 1)
        seen = len(curves(first)["records/s"])
        eventually(lambda: len(curves(first)["records/s"]) > seen)
        stop(first)
        assert len(server.folders()) == 1


def heap_bytes(seen: Seen) -> int:
    """Bytes that the page's JavaScript holds, after collecting garbage."""
    session = seen.page.context.new_cdp_session(seen.page)
    session.send("HeapProfiler.collectGarbage")
    used = session.send("Runtime.getHeapUsage")["usedSize"]
    session.detach()
    return int(used)


# Slow: a session of its own, 23 s. views/test_page_live and test_session restore what is in a URL without a browser.
@pytest.mark.slow
def test_choices_are_in_the_url_and_the_theme_is_remembered(browser: Browser, server: Server) -> None:
    """On a dark system: turn to a page and back by the browser's button, one session; load again in the theme."""
    theme = "document.documentElement.dataset.theme"
    before = set(server.folders())
    with looking(browser, server, scheme="dark") as seen:
        page = seen.page
        assert page.evaluate(theme) == "dark"
        page.get_by_role("button", name="Switch between light and dark").click()
        assert page.evaluate(theme) == "light"
        ask_for(seen, "bytes per record", 321)
        eventually(lambda: "bytes=321" in page.evaluate("location.search"))
        seen.turn_to("Recovery")
        page.get_by_role("button", name="Break and recover").wait_for()
        eventually(lambda: "page=recovery" in page.evaluate("location.search"))
        assert page.get_by_role("heading", level=1).inner_text() == "Recovery"
        page.go_back()
        page.get_by_role("button", name="Start", exact=True).wait_for()
        assert page.get_by_role("heading", level=1).inner_text() == "Live"
        assert len(set(server.folders()) - before) == 1
        page.goto(server.url + "?page=live&bytes=654&writers=3&durability=nonsense")
        page.get_by_role("button", name="Start", exact=True).wait_for()
        assert not page.get_by_label("bytes per record").count()
        for drawer in ("Load", "Log"):
            open_drawer(seen, drawer)
        page.get_by_label("durability").wait_for()
        assert page.get_by_label("bytes per record").input_value() == "654"
        assert page.get_by_label("writers or tasks").input_value() == "3"
        assert page.get_by_label("durability").input_value() == "sync"
        assert page.evaluate(theme) == "light"


# Slow: 19 s. views/test_inspector and test_runs do this on the pages without a browser.
@pytest.mark.slow
def test_the_inspector_shows_a_frame_and_runs_are_compared(
    browser: Browser, server: Server, windows: list[Seen]
) -> None:
    """By keyboard and mouse: the scratch log down to a frame's bytes; two runs measured, ticked and drawn together."""
    with looking(browser, server, windows) as seen:
        page = seen.page
        if on_live(seen) == 0:  # no test before has written
            seen.press("Start")
            eventually(lambda: len(curves(seen)["records/s"]) > 1)
            stop(seen)
        seen.turn_to("Inspector")
        page.get_by_label("known logs").select_option(label="this session's scratch log")
        frame = page.get_by_role("button", name="bytes of the frame at position").nth(1)
        frame.focus()
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="Frame at position").wait_for()
        grid = page.locator(".js-plotly-plot:visible").first
        eventually(lambda: grid.evaluate("element => element.data?.[0]?.type") == "heatmap")
        bytes_shown = grid.evaluate("element => Array.from(element.data[0].text[0])")
        assert bytes.fromhex("".join(bytes_shown[:4])) == b"WLKF"
        eventually(lambda: "log=scratch" in page.evaluate("location.search"))
        seen.press("Verify everything")
        page.get_by_role("heading", name="Verified").wait_for()
        seen.turn_to("Runs")
        page.get_by_role("cell", name="Live page").first.wait_for()
        ask_for(seen, "records", 300)
        for number, (who, style) in enumerate((("writer threads", "threads"), ("asyncio tasks", "tasks"))):
            page.get_by_label("who appends").select_option(who)
            seen.press("Measure")
            page.get_by_role("cell", name="this page").nth(number).wait_for()
            page.get_by_role("checkbox", name=f"compare 8 {style}, 100 B").last.press("Space")
        page.get_by_role("heading", name="Ratio").wait_for()
        assert "n = 1: the difference may be chance" in text(seen)
        latencies = page.locator(".js-plotly-plot:visible").last
        latencies.scroll_into_view_if_needed()
        eventually(lambda: len(latencies.evaluate(CURVES)) >= 2)
        names = [n for n, _ in latencies.evaluate(CURVES)]
        assert [any(f"8 {style}" in name for name in names) for style in ("threads", "tasks")] == [True, True]
        assert page.get_by_role("button", name="Repeat 5 times, in turn").is_enabled()
        ratios = page.locator(".js-plotly-plot:visible").first
        assert ratios.evaluate("element => element.data.at(-1).y.length") == 4


FOCUSED = """() => {
    let at = document.activeElement;
    while (at.shadowRoot && at.shadowRoot.activeElement) at = at.shadowRoot.activeElement;
    const style = getComputedStyle(at), box = at.getBoundingClientRect();
    return {
        name: (at.getAttribute("aria-label") || at.innerText || at.title || "").trim(), tag: at.tagName,
        on_screen: box.width > 0 && box.bottom > 0 && box.top < innerHeight,
        marked: style.outlineStyle === "auto" || style.outlineStyle === "solid" && parseFloat(style.outlineWidth) >= 2,
    };
}"""
"""The element that has the focus, in whatever shadow: what it says, and whether one sees it and that it has it."""


def test_the_keyboard_is_enough(browser: Browser, server: Server, windows: list[Seen]) -> None:
    """Tab over Live: the skip link is first, each stop is seen, Enter turns the page; axe complains of nothing."""
    with looking(browser, server, windows) as seen:
        page = seen.page
        on_live(seen)
        open_drawer(seen, "Load")
        assert page.evaluate("document.querySelector('a, button, input').className") == "skip"
        page.locator(".skip").focus()
        stops = []
        for _ in range(45):
            page.keyboard.press("Tab")
            stops.append(page.evaluate(FOCUSED))
        stops = [stop for stop in stops if stop["tag"] != "BODY"]
        assert stops[0]["name"] == "walkit, start anew"
        assert seen.inaccessible() == []
        assert [stop for stop in stops if not (stop["on_screen"] and stop["marked"])] == []
        assert {stop["tag"] for stop in stops} >= {"A", "BUTTON", "INPUT", "SELECT"}
        page.locator(".skip").focus()
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        assert page.evaluate(FOCUSED)["name"] == "Start"
        page.get_by_role("link", name="Recovery", exact=True).focus()
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Break and recover").wait_for()


# Slow: 7 s; only another version of the library can break this. Live complains of nothing in the tests by default.
@pytest.mark.slow
def test_a_change_before_the_drawing_is_not_an_error(
    browser: Browser, server: Server, windows: list[Seen]
) -> None:
    """Change the values of widgets that are made and not drawn, of each kind on two pages: none throws."""
    with looking(browser, server, windows) as seen:
        for name in ("Inspector", "Runs"):
            seen.turn_to(name)
            seen.settled_controls()
        assert seen.page.evaluate(UNDRAWN) == []


# Slow: 15 s. Only plotly's own layout can break this.
@pytest.mark.slow
def test_a_legend_keeps_its_place_at_another_width(
    browser: Browser, server: Server, windows: list[Seen]
) -> None:
    """Draw crash states on a phone, then widen the window: the legend is below the title of the axis."""
    with looking(browser, server, windows) as seen:
        seen.page.set_viewport_size({"width": 390, "height": 844})
        seen.turn_to("Crash lab")
        seen.press("Explore")
        figure = seen.page.locator(".js-plotly-plot:visible").first
        figure.locator(".legend").scroll_into_view_if_needed()
        assert figure.evaluate(LEGEND)[0] < 390
        seen.page.set_viewport_size({"width": 1440, "height": 900})
        eventually(lambda: figure.evaluate(LEGEND)[0] > 900)
        assert figure.evaluate(LEGEND)[1] >= 0


# Slow: eleven pages, 74 s. The Live page is asked by axe by default, and tests/site has a page on a phone.
@pytest.mark.slow
def test_a_phone_shows_all_of_it(browser: Browser, server: Server, windows: list[Seen]) -> None:
    """Each page, as the tests before have left it, 390 px wide: no sideways scroll, no word cut, no axe complaint."""
    with looking(browser, server, windows) as seen:
        seen.page.set_viewport_size({"width": 390, "height": 844})
        for kind in PAGES:
            name = kind.title
            seen.turn_to(name)
            seen.page.wait_for_function("slug => location.search.includes(`page=${slug}`)", arg=kind.slug)
            seen.settled_controls()
            if name == "Live":
                assert seen.page.locator(".card .value").first.bounding_box()["y"] < 800  # type: ignore[index]
            for share in (0.25, 0.5, 0.75, 1.0):  # figures are drawn when they come into view
                seen.page.evaluate(f"main.scrollTo(0, {share} * main.scrollHeight)")
                seen.page.wait_for_timeout(200)
            assert seen.page.locator("main summary").last.inner_text() == "The code for this", name
            with suppress(AssertionError):
                eventually(lambda: not seen.page.evaluate(CUT), 20)
            assert seen.page.evaluate(CUT) == [], name
            assert seen.page.evaluate("main.scrollWidth <= main.clientWidth"), name
            assert seen.inaccessible() == [], name
