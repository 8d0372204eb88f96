"""Metrics as text for Prometheus, in its exposition format 0.0.4; no package is needed for it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import Field, fields
from typing import Any

from walkit._internal.arguments import refuse
from walkit.metrics.statistics import LogStatistics, PeerStatistics, TrafficStatistics

Statistics = LogStatistics | PeerStatistics | TrafficStatistics
Labels = Mapping[str, str]

PREFIXES: dict[type, str] = {TrafficStatistics: "walkit_traffic_", PeerStatistics: "walkit_peer_"}
NS_PER_S = 1_000_000_000
LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def prometheus_text(
    statistics: Statistics | Iterable[tuple[Labels, Statistics]], *, labels: Labels | None = None
) -> str:
    """Return snapshots of statistics as Prometheus reads them: help, type and samples of each metric.

    Give one snapshot, or pairs of (labels, snapshot) of several logs, which together are one text; `labels` are added
    to each. Names start with `walkit_` (`walkit_traffic_` for the traffic of a primary or a replica, `walkit_peer_`
    for how far a replica or a delta reader is), counters end with `_total`, and times are seconds. A number
    that is not known has no sample. OptionsError for a label whose name Prometheus does not take, and for two
    snapshots with the same labels. Safe from any thread.
    """
    if isinstance(statistics, Statistics):
        statistics = [({}, statistics)]
    found: dict[str, tuple[Field[Any], dict[str, int]]] = {}
    for own, snapshot in statistics:
        label = _label_text({**(labels or {}), **own})
        for f in fields(snapshot):
            samples = found.setdefault(metric_name(snapshot, f), (f, {}))[1]
            if label in samples:
                refuse("labels", label or "{}", "other labels for each snapshot")
            if (value := getattr(snapshot, f.name)) is not None:
                samples[label] = value
    return "".join(f"{line}\n" for name, (f, samples) in found.items() for line in _lines(name, f, samples))


def metric_name(snapshot: Statistics, f: Field[Any]) -> str:
    """Return the name under which Prometheus has one number of a snapshot."""
    prefix = PREFIXES.get(type(snapshot), "walkit_")
    base = f.name.removesuffix("_ns") + "_seconds" if f.metadata["unit"] == "ns" else f.name
    return f"{prefix}{base}{'_total' if f.metadata['counts'] else ''}"


def _lines(name: str, f: Field[Any], samples: Mapping[str, int]) -> Iterator[str]:
    yield f"# HELP {name} {f.metadata['help'].replace(chr(92), chr(92) * 2)}"
    yield f"# TYPE {name} {'counter' if f.metadata['counts'] else 'gauge'}"
    for label, value in samples.items():
        yield f"{name}{label} {value / NS_PER_S if f.metadata['unit'] == 'ns' else value}"


def _label_text(labels: Labels) -> str:
    for name in labels:
        if not LABEL.fullmatch(name) or name.startswith("__"):
            refuse("labels", name, "letters, digits and underscores, no digit first")
    inside = ",".join(f'{name}="{str(value).translate(ESCAPES)}"' for name, value in sorted(labels.items()))
    return f"{{{inside}}}" if inside else ""
