# SPDX-License-Identifier: Apache-2.0
"""Frames that Spark reads from bookies and writes to them, and the errors that it raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def load(spark: Any, uri: str, path: str | None = None, *, schema: Any = None, **options: Any) -> Any:
    reader = spark.read.format("bookkeeper").options(metadataServiceUri=uri, **options)
    return (reader.schema(schema) if schema is not None else reader).load(path)


def append(frame: Any, uri: str, log: str, **options: Any) -> None:
    frame.write.format("bookkeeper").options(metadataServiceUri=uri, **options).mode("append").save(log)


def values(frame: Any) -> list[bytes]:
    return [bytes(row.value) for row in frame.select("value").collect()]


def failure(work: Callable[[], object]) -> str:
    """Return the text of the error that ``work`` raises. The error must have a code of this project."""
    with pytest.raises(Exception, match=r"\[BK_") as caught:
        work()
    return str(caught.value)
