"""walkit's own errors out of what Spark wraps them in: a stack trace of a Python worker, as text.

A worker notes the error's class, message and facts under its traceback, as one line of JSON; the driver finds that line
in Spark's exception and raises the error that it describes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.utils import is_remote

from walkit._internal.arguments import refuse
from walkit.errors import OptionsError, WalkitError

MARK = "walkit-error: "
"""The start of the line."""


@contextmanager
def noted() -> Iterator[None]:
    """Note under a WalkitError what the driver needs to raise it again; for what runs in a worker of Spark's."""
    try:
        yield
    except WalkitError as error:
        notes = getattr(error, "__notes__", [])
        if not any(note.startswith(MARK) for note in notes):
            error.add_note(MARK + described(error))
        raise


def described(error: WalkitError) -> str:
    """Return class, message, notes and facts as one line of JSON; a fact that JSON does not hold becomes text."""
    _, (cls, message, facts) = error.__reduce__()
    notes = facts.pop("__notes__", [])
    return json.dumps(
        {"class": cls.__name__, "message": message, "notes": notes, "facts": facts}, default=str
    )


@contextmanager
def errors() -> Iterator[None]:
    """Raise walkit's own errors, with their facts, where Spark raises its own around them.

    ::

        with walkit.spark.errors():
            df.count()  # CorruptionError, not PythonException with a stack trace of the worker

    For an action of yours, and for `load()`. Also a decorator. Every other exception comes out as it is. Spark's own
    exception is the error's `__context__`, and is not printed.
    """
    try:
        yield
    except WalkitError:
        raise
    except Exception as wrapped:
        found = unwrapped(str(wrapped)) or _of_a_stopped_session(wrapped)
        if found is None:
            raise
        raise found from None


STOPPED = "the Spark session was stopped: begin another with walkit.spark.session(), and load the log again"


def _of_a_stopped_session(error: Exception) -> WalkitError | None:
    """Return the error of a stopped session, which Spark does not name; None for errors with another reason."""
    if not isinstance(error, Py4JError | PySparkException) or is_remote():
        return None
    return OptionsError(STOPPED, option="spark") if SparkContext._active_spark_context is None else None


def require_open(df: object, what: str) -> None:
    """Raise `OptionsError` unless `df` is a DataFrame, of a session that was not stopped; `what` names the caller."""
    if not isinstance(df, DataFrame):
        refuse("df", df, f"{what} takes a DataFrame")
    if not is_remote() and df.sparkSession.sparkContext._jsc is None:
        raise OptionsError(STOPPED, option="df")


def unwrapped(text: str) -> WalkitError | None:
    """Return the walkit error that a text of Spark describes, or None."""
    for line in text.splitlines():
        _, mark, rest = line.partition(MARK)
        if mark:
            try:
                given, _ = json.JSONDecoder().raw_decode(rest)
            except ValueError:  # a line that Spark has cut, or a user's own words
                continue
            return _made(given)
    return None


def _made(given: dict[str, Any]) -> WalkitError:
    cls = _classes(WalkitError).get(given["class"], WalkitError)
    # As unpickling does: the constructors differ, and the message is made already.
    error = cls.__new__(cls)
    Exception.__init__(error, ". ".join(part.rstrip(".") for part in (given["message"], *given["notes"])))
    for name, value in given["facts"].items():
        setattr(error, name, value)
    return error


def _classes(base: type[WalkitError]) -> dict[str, type[WalkitError]]:
    found = {base.__name__: base}
    for cls in base.__subclasses__():
        found.update(_classes(cls))
    return found
