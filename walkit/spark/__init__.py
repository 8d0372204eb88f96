"""The far window: read logs with Spark.

::

    spark = walkit.spark.session()  # the active one, or one that works offline
    df = spark.read.format("walkit").load(path)  # walkit.RECORD_SCHEMA
    walkit.spark.replay(df, at_lsn=None)  # -> key, value, lsn of the live keys
    walkit.spark.diff(left, right)  # -> key, change, values and LSNs of both sides

Importing this needs pyspark (`pip install 'walkit[spark]'`) and starts nothing.
"""

import importlib.util

from walkit.errors import MissingExtraError

if importlib.util.find_spec("pyspark") is None:
    raise MissingExtraError("spark", "pyspark")

from walkit.spark.diff import diff
from walkit.spark.java import JavaHome, JavaNotFoundError, find_java
from walkit.spark.replay import replay
from walkit.spark.session import SparkStartError, register, session

__all__ = [
    "JavaHome",
    "JavaNotFoundError",
    "SparkStartError",
    "diff",
    "find_java",
    "register",
    "replay",
    "session",
]
