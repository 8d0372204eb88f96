"""The demo, told once for all tests of this room, on the session that all Spark tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.spark.conftest import spark
from walkit.demo import DemoResult, run
from walkit.workload import load_flights

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import SparkSession

__all__ = ["flights", "spark", "story"]


@pytest.fixture(scope="session")
def flights() -> pd.DataFrame:
    """The flights, read once for all tests of this room that make operations of them."""
    return load_flights()


@pytest.fixture(scope="session")
def story(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DemoResult:
    """The whole story with 8 writers and as few operations as it takes; each segment is a task of Spark."""
    return run(tmp_path_factory.mktemp("demo") / "out", operations=5_000, writers=8, progress=False)
