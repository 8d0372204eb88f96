"""Statistics and events of logs for OpenTelemetry; needs the extra `telemetry`, which brings its API.

Their use (an exporter, a reader, an interval) is the program's own set-up of the SDK.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from types import TracebackType
from typing import Any, Protocol, Self

from walkit._internal.arguments import refuse
from walkit._internal.locks import once
from walkit.errors import MissingExtraError
from walkit.events import EVENTS, EventCallback, logger
from walkit.metrics.prometheus import NS_PER_S
from walkit.metrics.statistics import LogStatistics, StoreStatistics

try:
    from opentelemetry.metrics import (
        CallbackOptions,
        MeterProvider,
        Observation,
        get_meter_provider,
    )
except ImportError as error:  # pragma: no cover - the tests have it
    raise MissingExtraError("telemetry", "opentelemetry-api") from error

WATCHED_MAX = 1024
"""Logs that one LogTelemetry watches at most."""
UNITS = {"ns": "s", "bytes": "By", "lsn": "1", "flag": "1"}
"""Units as OpenTelemetry writes them (UCUM); the counted thing is in braces."""


class HasStatistics(Protocol):
    """A log or a store."""

    def statistics(self) -> LogStatistics:
        """Return a frozen snapshot."""


@dataclass(eq=False)
class Watch:
    """One log that is watched, until `close`. A context manager."""

    source: HasStatistics
    attributes: Mapping[str, str]
    _ended: Callable[[Watch], None]
    _snapshot: LogStatistics | None = field(default=None, init=False)
    _read: set[str] = field(default_factory=set, init=False)

    def value(self, name: str) -> int | None:
        """Return one number; all numbers of one collection come from one snapshot. None if this log lacks it."""
        if self._snapshot is None or name in self._read:
            self._snapshot = self.source.statistics()
            self._read.clear()
        self._read.add(name)
        return getattr(self._snapshot, name, None)

    def close(self) -> None:
        """End it; the log is no longer read. Does nothing the second time."""
        self._ended(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class LogTelemetry:
    """Gives the statistics of watched logs, and a count of events, to a meter of OpenTelemetry.

    Instruments are `walkit.<name>` with the unit and meaning of `LogStatistics` and `StoreStatistics`, times in
    seconds. They are read when the reader collects, on its thread: once for all instruments of a log, and never on the
    path of an append. A log whose statistics cannot be read is left out of that collection, with a warning. Safe from
    any thread. `meter_provider` None is the program's own one; `forward` gets each event after it was counted, in
    place of `logging`.
    """

    def __init__(
        self, *, meter_provider: MeterProvider | None = None, forward: EventCallback | None = None
    ) -> None:
        meter = (meter_provider or get_meter_provider()).get_meter("walkit")
        # Guards `_watched`. Taken alone: no statistics are read under it.
        self._lock = threading.RLock()
        self._watched: list[Watch] = []
        self._forward = forward
        self._events = meter.create_counter(
            "walkit.events", unit="{event}", description="events of logs, by name"
        )
        for f in fields(StoreStatistics):
            seconds, unit = f.metadata["unit"] == "ns", f.metadata["unit"]
            make = meter.create_observable_counter if f.metadata["counts"] else meter.create_observable_gauge
            make(
                f"walkit.{f.name.removesuffix('_ns') + '_time' if seconds else f.name}",
                callbacks=[self._reader(f)],
                unit=UNITS.get(unit, f"{{{unit}}}"),
                description=f.metadata["help"],
            )

    def watch(self, log: HasStatistics, attributes: Mapping[str, str]) -> Watch:
        """Read this log at each collection from now on, under these attributes, which name it among the others.

        OptionsError if another watched log has the same attributes, and beyond `WATCHED_MAX`. Close what is
        returned before the log, or with it: it keeps the log.
        """
        watch = Watch(log, dict(attributes), self._end)
        with once(self._lock), self._lock:
            if any(other.attributes == watch.attributes for other in self._watched):
                refuse("attributes", dict(attributes), "another watched log has them")
            if len(self._watched) >= WATCHED_MAX:
                refuse("attributes", dict(attributes), f"{WATCHED_MAX:,} logs are watched already")
            self._watched.append(watch)
        return watch

    def on_event(self, name: str, attributes: dict[str, Any]) -> None:
        """Count one event and hand it on: to be given as `walkit.open(events=...)`."""
        self._events.add(1, {"name": name})
        if self._forward is not None:
            self._forward(name, attributes)
        else:
            level, meaning = EVENTS[name]
            logger.log(level, "%s: %s %s", name, meaning, attributes)

    def _end(self, watch: Watch) -> None:
        with once(self._lock), self._lock:
            self._watched = [other for other in self._watched if other is not watch]

    def _reader(self, f: Field[Any]) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def read(options: CallbackOptions) -> list[Observation]:
            observed = []
            for watch in tuple(self._watched):
                try:
                    value = watch.value(f.name)
                except Exception:  # noqa: BLE001 - one log that cannot be read hides no other
                    logger.warning(
                        "statistics of %s could not be read", dict(watch.attributes), exc_info=True
                    )
                    continue
                if value is not None:
                    scaled = value / NS_PER_S if f.metadata["unit"] == "ns" else value
                    observed.append(Observation(scaled, watch.attributes))
            return observed

        return read
