"""The demo, told once for all tests of this room, on the session that all Spark tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.spark.conftest import spark
from walkit.demo import DemoResult, tell

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark", "story"]


@pytest.fixture(scope="session")
def story(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DemoResult:
    """The whole story with 20,000 operations and 8 writers."""
    return tell(tmp_path_factory.mktemp("demo") / "out", operations=20_000, writers=8, progress=False)
