"""The far window: read logs with Spark.

::

    spark = walkit.spark.session()  # the active one, or one that works offline
    log = walkit.spark.load(path)  # walkit.RECORD_SCHEMA; also spark.read.format("walkit").load(path)
    walkit.spark.replay(log, at_lsn=None)  # -> key, value, lsn of the live keys; a path does, too
    spark.readStream.format("walkit").load(path)  # the same records as they become durable
    walkit.spark.verify(paths)  # -> a row for each log
    walkit.spark.count(path)  # from headers, without a session
    walkit.spark.diff((log, 100), log)  # -> key, change, values, LSNs and places of the records of both sides
    walkit.spark.changes(log, 101, 200)  # -> key, change, pre_value, post_value, lsn
    walkit.spark.history(log, b"key")  # -> key, value, valid_from_lsn, valid_to_lsn
    walkit.spark.replay_rows(df)  # a replay of the records in any DataFrame, unchecked
    with walkit.spark.errors():
        log.count()  # walkit's own errors, not Spark's around them
    with walkit.spark.progress():
        log.count()  # a bar: tasks done of those known

Importing this needs pyspark (`pip install 'walkit[spark]'`) and starts nothing.
"""

import importlib.util

from walkit.errors import MissingExtraError

if importlib.util.find_spec("pyspark") is None:
    raise MissingExtraError("spark", "pyspark")

from walkit.read.record_count import lsn_at
from walkit.spark.changes import changes
from walkit.spark.counting import count
from walkit.spark.diff import diff
from walkit.spark.diff_report import diff_report
from walkit.spark.errors import errors
from walkit.spark.history import history, states
from walkit.spark.java import JavaHome, JavaNotFoundError, find_java
from walkit.spark.loads import load
from walkit.spark.progress import progress
from walkit.spark.replay import replay, replay_rows
from walkit.spark.session import SparkStartError, register, session
from walkit.spark.sql import sql_functions
from walkit.spark.verify import PairReport, verify, verify_pair
from walkit.state.diff_report import DiffReport

__all__ = [
    "DiffReport",
    "JavaHome",
    "JavaNotFoundError",
    "PairReport",
    "SparkStartError",
    "changes",
    "count",
    "diff",
    "diff_report",
    "errors",
    "find_java",
    "history",
    "load",
    "lsn_at",
    "progress",
    "register",
    "replay",
    "replay_rows",
    "session",
    "sql_functions",
    "states",
    "verify",
    "verify_pair",
]
