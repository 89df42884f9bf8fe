# SPDX-License-Identifier: Apache-2.0
"""Hides data in kazoo's log lines. At level DEBUG kazoo logs all of each request and answer, and so the records of
ledgers with their passwords, and the credentials of this client."""

from __future__ import annotations

import logging


def without_data(record: logging.LogRecord) -> bool:
    """Filter a line of kazoo's logger. A request is reduced to its kind and path, and data to its size. Lines below
    DEBUG are dropped, because one of them has the key of the session."""
    if record.levelno < logging.DEBUG:
        return False
    if isinstance(record.args, tuple):
        record.args = tuple(map(_told, record.args))
    return True


def _told(value: object) -> object:
    if value is None or isinstance(value, (str, int, float, BaseException)):
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"{len(value)} bytes"
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):  # a request of kazoo's is a named tuple
        return [_told(each) for each in value]
    path = getattr(value, "path", None)
    return f"{type(value).__name__}({path})" if isinstance(path, str) else type(value).__name__
