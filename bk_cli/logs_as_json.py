# SPDX-License-Identifier: Apache-2.0
"""Formats log records as JSON, one object a line, for programs that collect logs."""

from __future__ import annotations

import datetime
import json
import logging


class JsonFormatter(logging.Formatter):
    """A formatter for JSON. ``time`` is UTC with milliseconds. ``error`` is present for an exception, and holds its
    traceback."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line = {
            "time": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "thread": record.threadName,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
