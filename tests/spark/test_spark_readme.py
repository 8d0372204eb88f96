"""The examples of README.md and of the page on Spark that need it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.test_docs import examples

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.conftest import Checkout

pytestmark = pytest.mark.spark


def test_the_example_of_the_readme_runs_by_itself(
    spark: SparkSession, checkout: Checkout, tmp_path: Path
) -> None:
    """Run the block that is marked to need Spark alone, its log elsewhere: the state and the change it speaks of."""
    (example,) = examples((checkout.root / "README.md").read_text())[1]
    assert example.count('"orders"') == 2
    # Spark's workers, which began before this test, have a working folder of their own.
    example = example.replace('"orders"', repr(str(tmp_path / "orders")))
    names: dict[str, Any] = {}
    exec(compile(example, "README.md", "exec"), names)  # noqa: S102 - the block as it stands
    assert names["spark"] is spark
    state = [(bytes(row.key), bytes(row.value), row.lsn) for row in names["state"].collect()]
    assert state == [(b"order-9", b"paid", 2)]
    (changed,) = names["changed"].collect()
    assert (changed.change, bytes(changed.left_value), bytes(changed.right_value)) == ("C", b"new", b"paid")


@pytest.mark.parametrize(
    "page",
    [
        "docs/how-to/read-with-spark.md",
        # Three streams of Spark's own kinds; test_a_stream_is_a_stream_of_records runs one as it is.
        pytest.param("docs/how-to/stream-with-spark.md", marks=pytest.mark.slow),
        "docs/api/spark.md",
    ],
)
def test_the_example_of_a_page_runs(
    page: str, spark: SparkSession, checkout: Checkout, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run the block of a page that needs Spark, its log elsewhere: two live keys, and two that changed."""
    (example,) = examples((checkout.root / page).read_text())[1]
    example = example.replace('"orders"', repr(str(tmp_path / "orders")))
    names: dict[str, Any] = {}
    exec(compile(example, page, "exec"), names)  # noqa: S102 - the block as it stands
    assert names["spark"] is spark
    assert capsys.readouterr().out.split() == ["2", "2"]
    if "table" in names:
        assert {value: count for value, count in names["table"]["orders"].items() if count} == {b"paid": 1}
