"""The JSON of every command, held to docs/output-for-programs.md."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import walkit
from tests.cli.conftest import Run
from walkit.replication import Primary, Replica

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "output-for-programs.md").read_text()
ROWS = {
    schema: set(re.findall(r"`([a-z_]+)`", fields))
    for schema, fields in re.findall(r"^\| `([\w.]+)/1` \| `walkit [^|]+` \| (.+) \|$", PAGE, re.MULTILINE)
}
EXACT = 1 << 53
"""Integers up to here are exact in every reader of JSON."""


def numbers_in(value: Any) -> Iterator[int]:
    """Every integer of a JSON value."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from numbers_in(item)
    elif isinstance(value, int):
        yield value


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A log that is served and has a claim, a copy to compare with, and a replica's folder."""
    folder = tmp_path_factory.mktemp("json")
    with walkit.open(folder / "log") as log:
        log.append_many([b"v", b"w"], [b"k", b"l"])
    with Primary(folder / "log") as primary:
        with Replica(folder / "replica", primary.address) as replica:
            replica.wait_for(2, 30)
        yield {
            "LOG": str(folder / "log"),
            "NEW": str(folder / "new"),
            "RUNS": str(folder / "runs"),
            "REPLICA": str(folder / "replica"),
            "HOST": primary.address,
        }


COMMANDS = {
    "walkit.inspect": "inspect LOG --frames",
    "walkit.verify": "verify LOG",
    "walkit.heal": "repair LOG --from HOST",
    "walkit.repair": "repair LOG --dry-run",
    "walkit.copy": "copy LOG NEW",
    "walkit.claims": "claims LOG",
    "walkit.status": "status HOST",
    "walkit.diff": "diff LOG@1 LOG",
    "walkit.diff.report": "diff LOG@1 LOG --decoder json",
    "walkit.promote": "promote REPLICA",
    "walkit.doctor": "doctor",
    "walkit.crashtest": "crashtest --scenario append --budget 1 --jobs 1",
    "walkit.crashtest.list": "crashtest --list",
    "walkit.simulate.world": "simulate world --schedules 1 --chaos-ms 200",
    "walkit.bench.write": "bench write --writers 1 --model gp3 --seconds 0.02",
    "walkit.bench.order": "bench order --writers 2 --models= --seconds 0.02 --runs 1 --save-runs RUNS",
}


@pytest.mark.parametrize("schema", COMMANDS)
def test_the_json_has_the_fields_of_the_page(
    schema: str, run: Run, logs: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run with --json: the schema comes first, the fields of the page are there, and no number is above 2^53."""
    monkeypatch.setattr("walkit.measure.health_checks.ROUND_S", 0.02)
    words = [re.sub("|".join(logs), lambda name: logs[name[0]], word) for word in COMMANDS[schema].split()]
    ran = run(*words, "--json")
    plain = json.loads(ran.out)
    assert next(iter(plain)) == "schema" and plain["schema"] == f"{schema}/1", ran.err
    assert ROWS[re.sub(r"(bench)\..*", r"\1.KIND", schema)] <= plain.keys()
    assert max(map(abs, numbers_in(plain)), default=0) <= EXACT
    assert ("bench" in plain) == schema.startswith("walkit.bench.")
    assert "--save-runs" not in words or any(Path(logs["RUNS"]).iterdir())
    log_id = plain.get("log_id", "0" * 16)
    assert re.fullmatch("[0-9a-f]{16}", log_id)


def test_the_page_has_every_report_of_the_commands() -> None:
    """Each name that a command publishes under is on the page and run here, except for Spark."""
    sources = [path.read_text() for path in (ROOT / "walkit" / "cli").glob("*.py")]
    calls = sum(len(re.findall(r"(?<!def )(?<!_)\bpublish\(", text)) for text in sources)
    named = [name for text in sources for name in re.findall(r"\bpublish\(\s*f?\"([^\"]+)\"", text)]
    assert len(named) == calls > 10
    assert {f"walkit.{name.replace('{args.kind}', 'KIND')}" for name in named} == ROWS.keys()
    tried = {re.sub(r"(bench)\..*", r"\1.KIND", name) for name in COMMANDS}
    assert tried == ROWS.keys()


def test_ids_are_those_that_people_see(run: Run, logs: dict[str, str]) -> None:
    """The id of the JSON is the one that `inspect` prints for people."""
    plain = json.loads(run("verify", logs["LOG"], "--json").out)
    assert f"log id {plain['log_id']}" in run("inspect", logs["LOG"]).out
