"""The kind of a record, as it is printed, formatted, stored and sent."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest

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
