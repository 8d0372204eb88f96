"""The kind of a record, as it is printed, formatted, stored and sent."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from IPython.lib.pretty import pretty

import walkit
from walkit import Kind, Record
from walkit.models import CrashingStorage


@pytest.mark.parametrize("kind", list(Kind))
def test_a_kind_prints_as_a_word_and_is_a_number_elsewhere(kind: Kind) -> None:
    """str, f-strings and %s say the name; comparing, %d, number formats, JSON, pickle, numpy and pandas the number."""
    name, number = kind.name.lower(), kind.value
    assert [str(kind), f"{kind}", f"{kind!s:>7}".strip(), f"{kind:>7}".strip(), "%s" % kind] == [name] * 5  # noqa: UP031
    assert repr(kind) == f"<Kind.{kind.name}: {number}>"
    assert kind == number and int(kind) == number and f"{kind:d} {kind:03d}" == f"{number} {number:03d}"
    assert "%d" % kind == str(number)  # noqa: UP031
    assert json.loads(json.dumps({"kind": kind})) == {"kind": number}
    assert pickle.loads(pickle.dumps(kind)) is kind
    assert np.array([kind]).dtype.kind == "i"
    frame = pd.DataFrame([Record(1, kind, b"k", b"v")])
    assert frame["kind"].dtype.kind == "i" and frame["kind"][0] == number


def test_records_of_a_log_print_their_kind(capsys: Any) -> None:
    """Put and delete a key and print record.kind as the README does: put, delete; repr of a record names the kind."""
    with walkit.open(storage=CrashingStorage()) as log:
        log.append(b"value", key=b"key")
        log.delete(b"key")
        records = list(log.read())
    for record in records:
        print(record.kind)
    assert capsys.readouterr().out.split() == ["put", "delete"]
    assert repr(records[1]) == "Record(lsn=2, kind=<Kind.DELETE: 2>, key=b'key', value=None, timestamp=None)"


def shown_by_ipython(value: object) -> str:
    """Return a value as the last line of a cell shows it in text."""
    text: str = pretty(value)  # type: ignore[no-untyped-call]
    return text


def test_a_record_is_short_in_a_notebook() -> None:
    """Show a record of a megabyte as IPython does, alone and in a list: its first bytes, its size; repr has all."""
    record = Record(7, Kind.PUT, None, b"<" * 1_000_000)
    for shown in (shown_by_ipython([record]), record._repr_html_()):
        assert len(shown) < 1_000 and "1,000,000 bytes" in shown
    assert "<<" not in record._repr_html_() and "absent" in record._repr_html_()
    short = Record(1, Kind.PUT, b"k", b"v")
    assert shown_by_ipython(short) == repr(short)
    assert len(repr(record)) > 1_000_000


def test_reports_of_opening_verifying_and_repairing_are_text(tmp_path: Path) -> None:
    """Leave half a frame after a log's end and print each report: few lines, with the cut and the outcome in words."""
    with walkit.open(
        tmp_path / "log", options=walkit.LogOptions(segment_bytes=1 << 16, frame_bytes_max=1 << 12)
    ) as log:
        log.append(b"value")
        log.sync()
        copied = shutil.copytree(tmp_path / "log", tmp_path / "killed")
    with (copied / "00000000000000000001.segment").open("r+b") as segment:
        segment.seek(4096 + 128)
        segment.write(b"WLKF half a frame")
    assert "NOT" not in str(walkit.verify(copied)) and "1 record" in str(walkit.verify(copied))
    assert "cut: position 128" in str(walkit.repair(copied, dry_run=True))
    with walkit.open(copied) as log:
        said = str(log.recovery).splitlines()
    assert (
        said[0].startswith(f"recovery of {copied}: recovered; last LSN 1") and "cut: position 128" in said[-1]
    )
    assert (
        str(walkit.copy(tmp_path / "log", tmp_path / "copy"))
        .splitlines()[0]
        .endswith(f"copy of {tmp_path / 'log'}")
    )


def test_an_observation_names_its_callback() -> None:
    """Print an observation that is open, and after its close: the callback's name, the state, the errors."""

    def watch(_: walkit.ObservedFrames) -> None:
        raise ValueError

    with walkit.open(storage=CrashingStorage(), events=lambda *_: None) as log:
        observation = log.observe(watch)
        assert repr(observation).endswith("watch open: 0 errors>")
        log.append(b"value")
        observation.close()
    assert "watch closed: " in repr(observation)


def test_a_policy_name_is_refused_with_the_call_that_works(tmp_path: Path) -> None:
    """Give LogOptions a policy's name: one line that names the call which makes one of it."""
    with pytest.raises(walkit.OptionsError, match=r"walkit\.policy\.named\('adaptive'\)"):
        walkit.LogOptions(policy="adaptive")  # type: ignore[arg-type]
