"""Metrics as text: Prometheus' own parser reads what is written, with the values of the snapshot."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import walkit
from walkit.errors import OptionsError
from walkit.metrics import LogStatistics, StoreStatistics, TrafficStatistics, prometheus_text


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """The parsed samples: value by (name, labels)."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_text_of_a_log_has_every_metric(tmp_path: Path) -> None:
    """Append to a log and parse its text: each metric is there with its value, type, help and label."""
    with walkit.open(tmp_path / "log") as log:
        log.append_many([b"x" * 100] * 10)
        statistics = log.statistics()
    text = prometheus_text(statistics, labels={"log": "orders"})
    found = samples(text)
    label = (("log", "orders"),)
    assert found["walkit_durable_lsn", label] == 10
    assert found["walkit_user_bytes_total", label] == 1000
    assert found["walkit_write_seconds_total", label] == statistics.write_ns / 1e9 > 0
    assert len(found) == len(fields(LogStatistics))
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["walkit_durable_lsn"].type == "gauge"
    assert families["walkit_user_bytes"].type == "counter"
    assert "stable storage" in families["walkit_durable_lsn"].documentation
    assert text.endswith("\n")


def test_several_logs_are_one_text() -> None:
    """A store, a log and a replica's traffic in one text: help and type once for each name, a sample for each log."""
    text = prometheus_text(
        [
            ({"log": "a"}, StoreStatistics(appended_lsn=1, keys=3)),
            ({"log": "b"}, LogStatistics(appended_lsn=2)),
            ({"log": "b"}, TrafficStatistics(batches=4)),
        ],
        labels={"host": "h"},
    )
    assert text.count("# TYPE walkit_appended_lsn ") == text.count("# HELP walkit_appended_lsn ") == 1
    found = samples(text)
    assert found["walkit_appended_lsn", (("host", "h"), ("log", "a"))] == 1
    assert found["walkit_appended_lsn", (("host", "h"), ("log", "b"))] == 2
    assert found["walkit_keys", (("host", "h"), ("log", "a"))] == 3
    assert found["walkit_traffic_batches_total", (("host", "h"), ("log", "b"))] == 4
    assert ("walkit_keys", (("host", "h"), ("log", "b"))) not in found


@pytest.mark.parametrize("value", ['a"b', "a\\b", "a\nb", "ü {x=1}", ""])
def test_any_value_of_a_label_comes_back(value: str) -> None:
    """Labels with quotes, backslashes, line ends and braces: the parser gives the same value back."""
    found = samples(prometheus_text(LogStatistics(poisoned=1), labels={"log": value}))
    assert found["walkit_poisoned", (("log", value),)] == 1


@pytest.mark.parametrize("name", ["", "1a", "a-b", "a b", "__name__", "ü"])
def test_a_name_that_prometheus_refuses_is_refused(name: str) -> None:
    """Invalid names of labels: an OptionsError that names the label, and no text."""
    with pytest.raises(OptionsError) as refused:
        prometheus_text(LogStatistics(), labels={name: "x"})
    assert refused.value.wanted == name


def test_two_logs_under_the_same_labels_are_refused() -> None:
    """Two snapshots without labels would be one sample twice: an OptionsError."""
    with pytest.raises(OptionsError):
        prometheus_text([({}, LogStatistics()), ({}, LogStatistics())])
