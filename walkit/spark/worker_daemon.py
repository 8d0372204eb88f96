"""The parent process of Spark's Python workers on one machine: it imports walkit once, and each worker is its fork.

Spark starts it by name (`spark.python.daemon.module`). Without it each new worker spends most of a second on the
imports of the data source.
"""

from pyspark.daemon import manager

import walkit.spark.source  # noqa: F401 - for the forks

if __name__ == "__main__":
    manager()
