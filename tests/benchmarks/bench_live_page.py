"""What an update of the Live page costs the server: python -m tests.benchmarks.bench_live_page

Two histories that are full, as after minutes of writing; each round adds a point to both and draws everything anew, as
the page does twice a second. Told is the time of the process's own work, for one place and for two side by side.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
from bokeh.document import Document

from walkit.measure import FrameSample, LatencyHistogram, RunEvent
from walkit.measure.frame_sample import SAMPLE_FRAMES_MAX
from walkit.plots import Band
from walkit.views.history import POINTS_MAX, detail_of
from walkit.views.live_load import LoadView
from walkit.views.overview import Point
from walkit.views.parts import ready
from walkit.views.session import Session
from walkit.views.sources import Reading

PLACES = ("this disk", "gp3, modelled")
WANTED_MS = 50.0


class Replayed(Session):
    """A session that tells points that were made beforehand."""

    def __init__(self) -> None:
        super().__init__()
        self.next: dict[str, Reading] = {}

    def readings(self) -> dict[str, Reading]:
        """Return what was put into `next`."""
        return self.next


def sample(pick: np.random.Generator) -> FrameSample:
    """Return frames in four lanes, with all times different."""
    begins = np.sort(pick.integers(0, 10_000_000, SAMPLE_FRAMES_MAX))
    count = np.arange(SAMPLE_FRAMES_MAX)
    times = (begins, begins + 5_000, begins + 400_000, begins + 400_000, begins + 500_000)
    return FrameSample(count + 1, count + 1, count + 256, 256 * count, *times, count % 4, seen=99, slowest=7)


def reading(pick: np.random.Generator, first: int, count: int) -> Reading:
    """Return points with latencies, frames and now and then an event or a new configuration."""
    details = [
        detail_of(LatencyHistogram.from_samples(pick.integers(10_000, 90_000_000, 500)), sample(pick))
        for _ in range(count)
    ]
    times = [number / 4 for number in range(first, first + count)]
    return Reading(
        status="",
        points=[Point(time_s, *pick.random(len(Point._fields) - 1).tolist()) for time_s in times],
        details=details,
        events=[RunEvent(time_s, "walkit.segment.rotate", {"number": 1}) for time_s in times[::8]],
        bands=[Band(time_s, f"{time_s} threads") for time_s in times[::80]],
    )


def measure(places: tuple[str, ...], rounds: int) -> list[float]:
    """Return the milliseconds of the process's time that each update took, with its messages for the browser."""
    pick, session = np.random.default_rng(7), Replayed()
    try:
        view = LoadView(session, lambda place, position: None)
        view.window = "all"
        document = Document()
        document.add_root(view.__panel__().get_root(document))
        session.next = {place: reading(pick, 0, POINTS_MAX) for place in places}
        view.refresh()
        took = []
        for number in range(rounds):
            session.next = {place: reading(pick, POINTS_MAX + 2 * number, 2) for place in places}
            began = time.process_time()
            view.refresh()
            took.append((time.process_time() - began) * 1e3)
        return took[2:]
    finally:
        session.close()


def main() -> None:
    """Print median and spread for one place and for two."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    ready()
    for count in (1, 2):
        took = measure(PLACES[:count], rounds)
        print(
            f"{count} place{'s' if count > 1 else ''}, {POINTS_MAX} points: median {statistics.median(took):.1f} ms, "
            f"{min(took):.1f} to {max(took):.1f} ms of {len(took)} updates (wanted: {WANTED_MS:.0f} ms)"
        )


if __name__ == "__main__":
    main()
