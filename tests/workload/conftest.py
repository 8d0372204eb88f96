"""The flights, their stream and the oracle's table, made once for all tests of this room."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from walkit.workload.expected_state import operation_table
from walkit.workload.flights import flight_operations, load_flights
from walkit.workload.operations import OperationStream

if TYPE_CHECKING:
    import pandas as pd


@pytest.fixture(scope="session")
def flights() -> pd.DataFrame:
    return load_flights()


@pytest.fixture(scope="session")
def stream(flights: pd.DataFrame) -> OperationStream:
    return flight_operations(flights=flights)


@pytest.fixture(scope="session")
def table(flights: pd.DataFrame) -> pd.DataFrame:
    return operation_table(flights)
