# SPDX-License-Identifier: Apache-2.0
"""Makes rows of a topic in the form in which trials compare them and golden files keep them."""

from __future__ import annotations

import base64
from typing import Any

import pyarrow as pa


def base64_of(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of a read of all columns, in the form of Pulsar's Java client (tests/interop/java/pulsar)."""
    for name in ("__publishTime", "__eventTime"):
        at = table.schema.get_field_index(name)
        table = table.set_column(at, name, table[name].cast(pa.int64()))
    return [
        {
            "id": base64_of(row["__messageId"]),
            "value": base64_of(row["value"]),
            "key": base64_of(row["__key"]),
            "ordering_key": base64_of(row["__orderingKey"]),
            "topic": row["__topic"],
            "publish_time": row["__publishTime"],
            "event_time": row["__eventTime"] or 0,
            "properties": dict(row["__messageProperties"]),
            "producer": row["__producer"],
            "sequence_id": row["__sequenceId"],
        }
        for row in table.to_pylist()
    ]
