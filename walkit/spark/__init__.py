"""The far window: read logs with Spark.

::

    spark = walkit.spark.session()  # the active one, or one that works offline
    df = spark.read.format("walkit").load(path)  # walkit.RECORD_SCHEMA
    walkit.spark.replay(df, at_lsn=None)  # -> key, value, lsn of the live keys
    spark.readStream.format("walkit").load(path)  # the same records as they become durable
    walkit.spark.verify(paths)  # -> a row for each log
    walkit.spark.count(path)  # from headers, without a session
    walkit.spark.diff(left, right)  # -> key, change, values, LSNs and places of the records of both sides
    walkit.spark.changes(df, 101, 200)  # -> key, change, pre_value, post_value, lsn
    with walkit.spark.errors():
        df.count()  # walkit's own errors, not Spark's around them
    with walkit.spark.progress():
        df.count()  # a bar: tasks done of those known
    walkit.spark.history(df, b"key")  # -> key, value, valid_from_lsn, valid_to_lsn

Importing this needs pyspark (`pip install 'walkit[spark]'`) and starts nothing.
"""

import importlib.util

from walkit.errors import MissingExtraError

if importlib.util.find_spec("pyspark") is None:
    raise MissingExtraError("spark", "pyspark")

from walkit.read.counting import lsn_at
from walkit.spark.changes import changes
from walkit.spark.counting import LogStats, count, stats
from walkit.spark.diff import diff
from walkit.spark.diff_report import diff_report
from walkit.spark.errors import errors
from walkit.spark.history import history, states
from walkit.spark.java import JavaHome, JavaNotFoundError, find_java
from walkit.spark.progress import progress
from walkit.spark.replay import replay
from walkit.spark.report import DiffReport
from walkit.spark.session import SparkStartError, register, session
from walkit.spark.verify import PairReport, verify, verify_pair

__all__ = [
    "DiffReport",
    "JavaHome",
    "JavaNotFoundError",
    "LogStats",
    "PairReport",
    "SparkStartError",
    "changes",
    "count",
    "diff",
    "diff_report",
    "errors",
    "find_java",
    "history",
    "lsn_at",
    "progress",
    "register",
    "replay",
    "session",
    "states",
    "stats",
    "verify",
    "verify_pair",
]
