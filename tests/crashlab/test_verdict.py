"""The crash verdict of a configuration: the laboratory's finding on a log's own options, in a sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest

import walkit
from walkit.crashlab import crash_verdict, explore_options, museum
from walkit.policy import Linger

OPTIONS = {
    "no sync": walkit.LogOptions(durability="none"),
    "interval": walkit.LogOptions(durability="interval"),
    "completion order": walkit.LogOptions(in_flight=4, ack_order="completion"),
    "policy, zstd": walkit.LogOptions(
        policy=Linger(100, 4096), codec="zstd", retention=walkit.Retention(records_max=2)
    ),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_no_configuration_breaks_a_rule(name: str) -> None:
    """Explore logs of several options: none breaks a rule, and the durability is that of the options."""
    found = explore_options(OPTIONS[name], budget=5)
    assert len(found) == 2 and all(e.ok and e.durability == OPTIONS[name].durability for e in found)


def test_a_verdict_is_a_sentence_for_a_run() -> None:
    """Take the verdict of good options, and of walkit with a bug: it names the counts and the rule."""
    good = crash_verdict(walkit.LogOptions(), budget=6)
    assert good.startswith("none of ") and good.endswith("breaks a rule; profile contract, durability sync")
    with museum.MUTANTS["acknowledged-unsynced"].applied():
        bad = crash_verdict(walkit.LogOptions(), budget=5)
    assert "break a rule (" in bad and not bad.startswith("none")
    with walkit.scratch("verdict") as log:
        run = walkit.workload.drive(log, walkit.workload.Workload(operations=20, seed=1), baseline=False)
    assert replace(run, crash_verdict=good).summary()["crash_verdict"] == good
