#!/usr/bin/env python3
"""Retake the screenshots of README.md: `make screenshots`. Real pages of the dashboard in a real browser.

Beside them it records the names of the controls of each page: if a page has others today, a test says that the pictures
are not current.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if not __package__:  # run as a script: use the checkout, installed or not
    sys.path.insert(0, str(ROOT))

from scripts.browsing import Seen, find_browser, look_at, open_browser, serve  # noqa: E402

FOLDER = ROOT / "dashboards" / "screenshots"
RECORD = FOLDER / "controls.txt"
"""Names and controls of the pages when the pictures were taken."""
WRITING_S = 12.0
"""How long the writers are watched before the picture of the Live page is taken."""


def take(seen: Seen, name: str) -> None:
    """Save a picture of the window."""
    path = FOLDER / f"{name}.png"
    seen.page.screenshot(path=path)
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1000:.0f} kB")


def controls_of_pages(seen: Seen) -> str:
    """Turn to each page of a dashboard on which nothing was done yet, and return its name and controls as text."""
    said = []
    for link in seen.page.locator("nav a").all():
        name, slug = link.inner_text(), link.get_attribute("data-page")
        seen.turn_to(name)
        # The address changes after the page is there.
        seen.page.wait_for_function("slug => location.search.includes(`page=${slug}`)", arg=slug)
        said.append("\n".join([name, *(f"  {control}" for control in seen.settled_controls())]))
    return "\n".join(said).replace(str(ROOT), "the data root") + "\n"


def main() -> int:
    """Serve the dashboard, press its buttons, take a picture of each page."""
    browser = find_browser()
    if browser is None:
        print("no Chromium on this machine: install it first", file=sys.stderr)
        return 1
    FOLDER.mkdir(exist_ok=True)
    with serve() as server, open_browser(browser) as running:
        seen = look_at(running, server.url, width=1440, height=900)
        RECORD.write_text(controls_of_pages(seen), encoding="utf-8")
        print(f"{RECORD.relative_to(ROOT)}: {len(RECORD.read_text(encoding='utf-8').splitlines())} lines")
        seen.page.context.close()
        seen = look_at(running, server.url, width=1440, height=900)
        seen.press("Start")
        time.sleep(WRITING_S)
        take(seen, "live")
        seen.turn_to("Recovery")
        seen.page.get_by_label("fault").select_option(label="half a frame")
        seen.press("Break and recover")
        seen.page.locator(".cuts table").wait_for()
        time.sleep(1.0)  # the bars are drawn
        seen.page.set_viewport_size({"width": 1000, "height": 860})
        time.sleep(1.0)
        take(seen, "recovery")
        seen.turn_to("Compaction")
        for label in ("Write records", "Take or release a claim", "Compact"):
            seen.press(label)
            time.sleep(2.0)  # each step is done before the next is asked for
        seen.page.locator(".steps table").wait_for()
        time.sleep(1.0)
        take(seen, "compaction")
    return 0


if __name__ == "__main__":
    sys.exit(main())
