"""Many explorations, side by side in processes: scenarios under profiles, each pair once."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from contextlib import nullcontext

from walkit.crashlab.exploration import Exploration
from walkit.crashlab.explorer import explore
from walkit.crashlab.museum import MUTANTS
from walkit.crashlab.summary import Explorations

Pair = tuple[str, str]
"""Names of a scenario and a profile."""


def explore_all(
    pairs: Sequence[Pair],
    budget: int,
    seed: int,
    mutant: str = "",
    *,
    jobs: int,
    progress: Callable[[int, int], object] | None = None,
) -> Explorations:
    """Explore each pair in one of `jobs` new processes; Ctrl-C ends it with the explorations that are complete.

    `progress` is called with (explorations that are complete, all of them). Scenarios, profiles and the mutant are
    those that walkit has under these names.
    """
    found: dict[int, Exploration] = {}
    spawned = multiprocessing.get_context("spawn")
    ignore = (signal.SIGINT, signal.SIG_IGN)
    with ProcessPoolExecutor(jobs, spawned, initializer=signal.signal, initargs=ignore) as pool:
        left: dict[Future[Exploration], int] = {
            pool.submit(_explore, pair, budget, seed, mutant): number for number, pair in enumerate(pairs)
        }
        try:
            while left:
                done, _ = wait(left, return_when=FIRST_COMPLETED)
                for future in done:
                    found[left.pop(future)] = future.result()
                if progress is not None:
                    progress(len(found), len(pairs))
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            if not isinstance(error, KeyboardInterrupt):
                raise
    missing = [f"{scenario} ({profile})" for n, (scenario, profile) in enumerate(pairs) if n not in found]
    return Explorations(tuple(found[number] for number in sorted(found)), tuple(missing))


def _explore(pair: Pair, budget: int, seed: int, mutant: str) -> Exploration:
    # On another thread than the main one, on which each opening and closing of a log starts a thread.
    with (
        MUTANTS[mutant].applied() if mutant else nullcontext(),
        ThreadPoolExecutor(1) as thread,
    ):
        return thread.submit(explore, pair[0], budget, seed, pair[1]).result()
