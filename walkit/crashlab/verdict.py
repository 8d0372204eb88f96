"""The crash verdict of a configuration: the text beside its throughput."""

from __future__ import annotations

from dataclasses import replace

from walkit._internal.text import counted
from walkit.config import LogOptions, Retention
from walkit.crashlab.exploration import Exploration
from walkit.crashlab.explorer import explore
from walkit.crashlab.profiles import Profile, profile_of
from walkit.crashlab.scenarios import SCENARIOS, SMALL


def explore_options(
    options: LogOptions, budget: int = 300, profile: str | Profile = "contract", seed: int = 0
) -> tuple[Exploration, ...]:
    """Explore logs with these options after a power cut: their durability, order, codec, frames in flight.

    Sizes are those of the laboratory, so that a few records fill a segment. Logs are buffered there, whatever
    `direct_io` says, and a policy, which belongs to one log, is left out. `budget` is the states of each scenario.
    OptionsError.
    """
    chosen = replace(
        options,
        segment_bytes=SMALL.segment_bytes,
        frame_bytes_max=4096 if options.in_flight > 1 else SMALL.frame_bytes_max,
        idle_marker_ms=0,
        direct_io=False,
        retention=Retention(),
        policy=None,
        recovery="holes" if options.ack_order == "completion" else options.recovery,
    )
    names = ("append", "rotation") if options.durability == "sync" else ("append", "unsynced")
    if options.in_flight > 1:
        names = ("append", "parallel")
    return tuple(explore(replace(SCENARIOS[name], options=chosen), budget, seed, profile) for name in names)


def crash_verdict(
    options: LogOptions, budget: int = 300, profile: str | Profile = "contract", seed: int = 0
) -> str:
    """Return the findings of `explore_options`, in a sentence: a throughput means little if records are lost.

    It is the value for `Run.crash_verdict`: `dataclasses.replace(run, crash_verdict=crash_verdict(log.options))`.
    """
    found = explore_options(options, budget, profile, seed)
    judged = counted(sum(e.distinct for e in found), "crash state")
    broken = sum(e.broken for e in found)
    rules = sorted({violation.rule for e in found for violation in e.violations})
    what = f"{broken:,} of {judged} break a rule ({', '.join(rules)})"
    if all(e.ok for e in found):
        what = f"none of {judged} breaks a rule"
    return f"{what}; profile {profile_of(profile).name}, durability {options.durability}"
