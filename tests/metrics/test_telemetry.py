"""OpenTelemetry: its real SDK collects what logs count, into memory."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import walkit
from walkit.errors import OptionsError
from walkit.metrics import LogStatistics
from walkit.metrics.telemetry import LogTelemetry


class Collector:
    """A LogTelemetry over the SDK with a reader in memory."""

    def __init__(self, **settings: Any) -> None:
        self.reader = InMemoryMetricReader()
        self.telemetry = LogTelemetry(meter_provider=MeterProvider(metric_readers=[self.reader]), **settings)

    def collect(self) -> dict[str, Any]:
        """The metrics that the SDK collects now, by name."""
        data = self.reader.get_metrics_data()
        if data is None:
            return {}
        return {m.name: m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics}

    def values(self, name: str) -> dict[str, float]:
        """The values of one metric by the attribute `log`."""
        metric = self.collect().get(name)
        points = [] if metric is None else metric.data.data_points
        return {point.attributes["log"]: point.value for point in points}


def test_the_sdk_collects_what_logs_count(tmp_path: Path) -> None:
    """A log and a store under two names: collected are both, with unit and kind; a log has no metric of a store."""
    collector = Collector()
    with walkit.open(tmp_path / "a") as log, walkit.Store.open(tmp_path / "b") as store:
        log.append_many([b"x"] * 5)
        store[b"k"] = b"v"
        with (
            collector.telemetry.watch(log, {"log": "a"}),
            collector.telemetry.watch(store, {"log": "b"}),
        ):
            found = collector.collect()
            durable = found["walkit.durable_lsn"]
            assert {p.attributes["log"]: p.value for p in durable.data.data_points} == {"a": 5, "b": 1}
            assert found["walkit.write_time"].unit == "s"
            assert found["walkit.user_bytes"].unit == "By"
            assert found["walkit.records_acked"].unit == "{records}"
            assert found["walkit.records_acked"].data.is_monotonic
            assert [p.attributes["log"] for p in found["walkit.keys"].data.data_points] == ["b"]
            (seconds,) = [
                p.value for p in found["walkit.write_time"].data.data_points if p.attributes["log"] == "a"
            ]
            assert seconds == pytest.approx(log.statistics().write_ns / 1e9)
        assert collector.values("walkit.durable_lsn") == {}


class Counted:
    """A source that counts how often its statistics are asked for; or fails."""

    def __init__(self, *, fails: bool = False) -> None:
        self.asked, self.fails = 0, fails

    def statistics(self) -> LogStatistics:
        self.asked += 1
        if self.fails:
            raise RuntimeError("gone")
        return LogStatistics(appended_lsn=self.asked, acked_lsn=self.asked)


def test_a_collection_takes_one_snapshot() -> None:
    """Collect three times: the statistics are read three times, and each collection uses one snapshot."""
    collector = Collector()
    source = Counted()
    collector.telemetry.watch(source, {"log": "a"})
    for number in (1, 2, 3):
        found = collector.collect()
        for name in ("walkit.appended_lsn", "walkit.acked_lsn"):
            assert [p.value for p in found[name].data.data_points] == [number]
    assert source.asked == 3


def test_a_log_that_cannot_be_read_hides_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """Watch a source that raises beside one that does not: the second is collected, and a warning names the first."""
    collector = Collector()
    collector.telemetry.watch(Counted(fails=True), {"log": "bad"})
    collector.telemetry.watch(Counted(), {"log": "good"})
    with caplog.at_level(logging.WARNING, "walkit"):
        assert collector.values("walkit.appended_lsn") == {"good": 1}
    assert "'log': 'bad'" in caplog.text


def test_two_logs_under_the_same_attributes_are_refused() -> None:
    """Watch twice under one name: an OptionsError; after the first is closed, twice, the name is free."""
    collector = Collector()
    first = collector.telemetry.watch(Counted(), {"log": "a"})
    with pytest.raises(OptionsError):
        collector.telemetry.watch(Counted(), {"log": "a"})
    first.close()
    first.close()
    collector.telemetry.watch(Counted(), {"log": "a"})


def test_events_are_counted_and_forwarded(tmp_path: Path) -> None:
    """Open and close a log: its events are counted by name, and each reaches the callback that was given."""
    seen: list[str] = []
    collector = Collector(forward=lambda name, attributes: seen.append(name))
    with walkit.open(tmp_path / "log", events=collector.telemetry.on_event) as log:
        log.append(b"x")
    points = collector.collect()["walkit.events"].data.data_points
    assert {p.attributes["name"]: p.value for p in points} == {name: seen.count(name) for name in seen}
    assert {"walkit.log.open", "walkit.log.close"} <= set(seen)


def test_events_go_to_logging_without_a_callback(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Count events without a callback: they are in the log of Python as they are without telemetry."""
    with caplog.at_level(logging.DEBUG, "walkit"):
        walkit.open(tmp_path / "log", events=Collector().telemetry.on_event).close()
    assert "walkit.log.open: a log was opened" in caplog.text
