# SPDX-License-Identifier: Apache-2.0
"""What the tests of all modes share: loading, saving and the text of a refusal. Plain SQL expressions only, because
column functions belong to one kind of session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest


@dataclass(frozen=True, slots=True)
class Source:
    """``format("bookkeeper")`` on one session and cluster; ``log`` is the log of the running test."""

    spark: Any
    uri: str
    log: str

    def rows(self, count: int, partitions: int = 2, start: int = 0) -> Any:
        """``row 0``, ``row 1`` and so on."""
        return self.spark.range(start, start + count, 1, partitions).selectExpr("concat('row ', id) AS value")

    def reader(self, **options: Any) -> Any:
        return self.spark.read.format("bookkeeper").options(metadataServiceUri=self.uri, **options)

    def load(self, path: str | None = None, **options: Any) -> Any:
        return self.reader(**options).load(self.log if path is None else path)

    def append(self, frame: Any, path: str | None = None, **options: Any) -> None:
        writer = frame.write.format("bookkeeper").options(metadataServiceUri=self.uri, **options)
        writer.mode("append").save(self.log if path is None else path)

    def fill(self, count: int) -> list[str]:
        """Append ``count`` rows; returns all rows that the log then has, in order."""
        self.append(self.rows(count))
        return self.values()

    def values(self, path: str | None = None, **options: Any) -> list[str]:
        return texts(self.load(path, **options))

    def sql_options(self, **more: str) -> str:
        """``metadataServiceUri '…', log '…'`` for OPTIONS (…)."""
        given = {"metadataServiceUri": self.uri, "log": self.log} | more
        return ", ".join(f"{name} '{text}'" for name, text in given.items())

    def with_options(self, **more: str) -> str:
        """The same for WITH (…)."""
        given = {"metadataServiceUri": self.uri, "log": self.log} | more
        return ", ".join(f"`{name}` = '{text}'" for name, text in given.items())

    def sql(self, statement: str) -> list[Any]:
        rows: list[Any] = self.spark.sql(statement).collect()
        return rows


def texts(frame: Any) -> list[str]:
    """The column ``value`` as text, in the order of the log."""
    return [bytes(row.value).decode() for row in frame.select("value").collect()]


def refusal(work: Callable[[], object]) -> str:
    """The text of the error that ``work`` ends with."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which class it is differs between the modes
        work()
    assert not isinstance(caught.value, AssertionError)
    return str(caught.value)
