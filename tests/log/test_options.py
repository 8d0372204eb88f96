"""Options: the refused ones, the limits, and those that the log itself has fixed."""

from __future__ import annotations

import pickle
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import walkit
from tests.support.logs import TINY, lsns, values
from walkit import LogOptions, Retention, StoreOptions
from walkit.commit.policy import TakeAll
from walkit.errors import OptionsError
from walkit.format.file_names import cursor_file_name
from walkit.log.validate import value_bytes_max
from walkit.models import CrashingStorage

WRONG_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"durability": "often"}, "durability"),
    ({"durability": None}, "durability"),
    ({"durability": ["sync"]}, "durability"),
    ({"interval_ms": 10}, "interval_ms"),
    ({"interval_ms": 10, "durability": "none"}, "interval_ms"),
    ({"interval_ms": 0, "durability": "interval"}, "interval_ms"),
    ({"interval_ms": 1.5, "durability": "interval"}, "interval_ms"),
    ({"in_flight": 0}, "in_flight"),
    ({"in_flight": 1025}, "in_flight"),
    ({"in_flight": True}, "in_flight"),
    ({"ack_order": "none"}, "ack_order"),
    ({"policy": "take all"}, "policy"),
    ({"policy": TakeAll}, "policy"),
    ({"reorder_window_bytes": 1 << 24}, "reorder_window_bytes"),
    ({"reorder_window_bytes": 1 << 22, "in_flight": 2}, "reorder_window_bytes"),
    ({"reorder_window_bytes": 1.0, "in_flight": 2}, "reorder_window_bytes"),
    ({"write_timeout_ms": 0}, "write_timeout_ms"),
    ({"direct_io": True, "frame_bytes_max": 4096}, "frame_bytes_max"),
    ({"segment_bytes": 1000}, "segment_bytes"),
    ({"segment_bytes": "64 MB"}, "segment_bytes"),
    ({"segment_bytes": 1 << 41}, "segment_bytes"),
    ({"frame_bytes_max": 100}, "frame_bytes_max"),
    ({"frame_bytes_max": 1 << 31}, "frame_bytes_max"),
    ({"segment_bytes": 1 << 16, "frame_bytes_max": 1 << 16}, "frame_bytes_max"),
    ({"segment_bytes": 1 << 20, "frame_bytes_max": 4 << 20}, "frame_bytes_max"),
    ({"codec": "gzip"}, "codec"),
    ({"queue_bytes_max": 10}, "queue_bytes_max"),
    ({"on_full": "drop"}, "on_full"),
    ({"recovery": "hope"}, "recovery"),
    ({"retention": None}, "retention"),
    ({"idle_marker_ms": -1}, "idle_marker_ms"),
]


@pytest.mark.parametrize(("options", "named"), WRONG_OPTIONS, ids=str)
def test_options_that_are_wrong_contradict_or_are_not_there_yet(options: dict[str, Any], named: str) -> None:
    """Make each wrong set of options: OptionsError that names the option, before anything is opened."""
    with pytest.raises(OptionsError, match=named) as wrong:
        LogOptions(**options)
    assert wrong.value.option == named


KINDS: tuple[Any, ...] = (LogOptions, StoreOptions, Retention)
SWITCHES = [(kind, f.name) for kind in KINDS for f in fields(kind) if f.type == "bool"]


@pytest.mark.parametrize("given", [0, 1, 1.0, None, "yes", np.bool_(True)], ids=repr)
def test_a_switch_is_true_or_false(given: Any) -> None:
    """Give every option with the annotation bool a value that is only truthy: OptionsError that names it."""
    assert [name for _, name in SWITCHES] == ["direct_io", "below_claims"]
    for kind, name in SWITCHES:
        with pytest.raises(OptionsError, match="True or False") as wrong:
            kind(**{name: given})
        assert (wrong.value.option, wrong.value.wanted) == (name, given)
        assert getattr(kind(**{name: True}), name) is True


@pytest.mark.parametrize(
    ("name", "given"), [("options", LogOptions()), ("options", 5), ("progress", print), ("progress", 5)]
)
def test_reading_takes_no_option_that_it_would_ignore(name: str, given: Any) -> None:
    """Open for reading with options or progress: OptionsError that names it; events are taken, and are called."""
    storage, seen = CrashingStorage(), list[str]()
    with walkit.open(storage=storage, options=TINY) as log:
        log.append(b"v")
    with pytest.raises(OptionsError, match=f"{name}=.*mode='r'") as refused:
        walkit.open(storage=storage, mode="r", **{name: given})
    assert (refused.value.option, refused.value.wanted) == (name, given)
    file = storage.open(cursor_file_name("c"), "create")
    file.write(0, [b"damage"])
    file.close()
    with walkit.open(storage=storage, mode="r", events=lambda event, _: seen.append(event)) as reader:
        assert reader.cursor("c").fault and seen == ["walkit.cursor.reset"]


@pytest.mark.parametrize(
    "options",
    [
        {"durability": "interval"},
        {"durability": "interval", "interval_ms": 1},
        {"segment_bytes": 1 << 16},
        {"segment_bytes": 1 << 16, "direct_io": True},
        {"segment_bytes": 1 << 16, "frame_bytes_max": (1 << 16) - 4096},
        {"frame_bytes_max": 4096, "queue_bytes_max": 4096},
        {"in_flight": 1024, "policy": TakeAll(), "write_timeout_ms": None},
        {"in_flight": 2, "frame_bytes_max": 4096, "reorder_window_bytes": 8192},
        {"codec": "zstd", "ack_order": "append", "recovery": "absolute", "idle_marker_ms": 0},
    ],
    ids=str,
)
def test_options_at_their_limits_work(options: dict[str, Any]) -> None:
    """Open, append and read with options at the edges of the allowed range."""
    storage = CrashingStorage()
    for _ in range(2):
        with walkit.open(storage=storage, options=LogOptions(**options)) as log:
            log.append_many([bytes(n) for n in range(1000)])
            assert log.options.as_dict()["durability"] == log.options.durability
    with walkit.open(storage=storage, mode="r") as reader:
        assert lsns(reader.read()) == list(range(1, 2001))


def test_options_are_frozen_and_keyword_only() -> None:
    """Change an option, and give one without its name: refused by the class."""
    with pytest.raises(AttributeError):
        LogOptions().durability = "none"  # type: ignore[misc]
    with pytest.raises(TypeError):
        LogOptions("sync")  # type: ignore[call-arg]


@pytest.mark.parametrize(("stored", "other"), [("append", "completion"), ("completion", "append")])
def test_what_is_stored_in_the_log_wins_over_options(stored: Any, other: Any) -> None:
    """Reopen with another acknowledgement order: OptionsError with both values, the lock free; None takes the log's."""
    storage = CrashingStorage()
    with walkit.open(storage=storage, options=LogOptions(ack_order=stored)) as log:
        log.append(b"1")
    with pytest.raises(OptionsError, match=f"'{other}'.*'{stored}'") as conflict:
        walkit.open(storage=storage, options=LogOptions(ack_order=other))
    assert (conflict.value.option, conflict.value.wanted, conflict.value.stored) == (
        "ack_order",
        other,
        stored,
    )
    for options in (LogOptions(ack_order=stored), LogOptions()):
        with walkit.open(storage=storage, options=options) as log:
            assert log.acked_lsn == 1
            assert log.parts.core.completion_order == (stored == "completion")


@pytest.mark.parametrize("direct_io", [False, True])
@pytest.mark.parametrize("queue_bytes_max", [4096, 1 << 16])
def test_the_largest_value_is_known_before_the_log(
    direct_io: bool, queue_bytes_max: int, tmp_path: Path
) -> None:
    """Append the largest value that the options say fits, beside a key and without: taken, and one byte more is not."""
    options = LogOptions(frame_bytes_max=1 << 14, direct_io=direct_io, queue_bytes_max=queue_bytes_max)
    with walkit.open(tmp_path / "log", options=options) as log:
        for key in (None, b"key"):
            most = value_bytes_max(options, 0 if key is None else len(key))
            log.append(bytes(most), key=key)
            if not direct_io or log.statistics().alignment == 4096:
                with pytest.raises(walkit.RecordTooLargeError):
                    log.append(bytes(most + 1), key=key)


def test_the_largest_frame_follows_from_the_size_of_a_segment() -> None:
    """Give segment_bytes alone, then replace it: frames fit, up to 4 MiB; a value that was given stays, and is held."""
    assert LogOptions().frame_bytes_max == LogOptions(segment_bytes=1 << 40).frame_bytes_max == 4 << 20
    small = LogOptions(segment_bytes=1 << 16)
    assert small.frame_bytes_max == (1 << 16) - 4096
    assert type(small.as_dict()["frame_bytes_max"]) is int
    assert replace(small, segment_bytes=1 << 20).frame_bytes_max == (1 << 20) - 4096
    assert replace(LogOptions(), segment_bytes=1 << 16) == small == pickle.loads(pickle.dumps(small))
    given = LogOptions(segment_bytes=8 << 20, frame_bytes_max=4 << 20)
    assert replace(given, segment_bytes=5 << 20).frame_bytes_max == 4 << 20
    with pytest.raises(OptionsError, match=r"frame_bytes_max=4194304: .* segment_bytes=65536") as wrong:
        replace(given, segment_bytes=1 << 16)
    assert (wrong.value.wanted, wrong.value.stored) == (4 << 20, 1 << 16)


def test_limits_bind_only_new_segments() -> None:
    """Shrink and grow segments and frames from opening to opening: old records stay readable, new limits hold."""
    storage = CrashingStorage()
    sizes = [(1 << 20, 1 << 19), (1 << 16, 1 << 12), (1 << 18, 1 << 16)]
    expected = []
    for segment_bytes, frame_bytes_max in sizes:
        options = LogOptions(segment_bytes=segment_bytes, frame_bytes_max=frame_bytes_max)
        with walkit.open(storage=storage, options=options) as log:
            largest = bytes(min(log.parts.core.body_bytes_max, log.options.queue_bytes_max) - 21)
            log.append(largest)
            expected.append(largest)
            with pytest.raises(walkit.RecordTooLargeError):
                log.append(largest + b"1")
    with walkit.open(storage=storage) as log:
        assert values(log.read()) == expected
