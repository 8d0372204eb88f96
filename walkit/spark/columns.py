"""The columns of a log as Spark has them."""

from __future__ import annotations

from pyspark.sql.types import (
    BinaryType,
    ByteType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from walkit._internal.arguments import refuse

RECORD_STRUCT = StructType(
    [
        StructField("lsn", LongType(), nullable=False),
        StructField("kind", ByteType(), nullable=False),
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("timestamp", TimestampType()),
    ]
)
"""`walkit.RECORD_SCHEMA` as Spark has it."""


LOG_FIELDS = (
    StructField("log", StringType(), nullable=False),
    StructField("log_id", StringType(), nullable=False),
)
"""The columns that a load of several logs adds: the path of the record's log, and its id in 16 hexadecimal digits."""


def require_subset(schema: StructType, known: StructType = RECORD_STRUCT) -> None:
    """Raise `OptionsError` unless `schema` has columns, and each is one of `known`, with its type."""
    if not schema.fields:
        refuse("schema", schema.simpleString(), "the schema has no column; leave it out to have all")
    types = {field.name: field.dataType for field in known.fields}
    for field in schema.fields:
        if types.get(field.name) != field.dataType:
            columns = ", ".join(f"{name} {kind.simpleString()}" for name, kind in types.items())
            refuse("schema", f"{field.name} {field.dataType.simpleString()}", f"a log has {columns}")
