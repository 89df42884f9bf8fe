# SPDX-License-Identifier: Apache-2.0
"""Logs of ``bk`` as JSON: a process of its own, because logging is set up once."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

from bk_cli.logs_as_json import JsonFormatter

ROOT = Path(__file__).parents[2]


def test_a_record_is_one_line_with_its_traceback_inside() -> None:
    try:
        raise ValueError("a\nb")
    except ValueError:
        record = logging.LogRecord("x.y", logging.ERROR, "f", 1, 'it "%s"\nand', ("ä",), sys.exc_info())
    record.created = 1_700_000_000.25
    line = JsonFormatter().format(record)
    assert "\n" not in line
    said = json.loads(line)
    assert said.pop("error").endswith("ValueError: a\nb")
    assert said == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "ERROR",
        "logger": "x.y",
        "thread": "MainThread",
        "message": 'it "ä"\nand',
    }


def test_every_line_that_a_process_logs_is_json(tmp_path: Path) -> None:
    """The variable is for containers, where nobody types options. ``-vv`` logs the traceback of the error."""
    command = [sys.executable, "-m", "bk_cli.main", "-vv", "bookie", "run", "--data", str(tmp_path / "data")]
    ended = subprocess.run(
        [*command, "--metadata-service-uri", "nowhere://here"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "BK_LOG_FORMAT": "json"},
        capture_output=True,
        text=True,
        timeout=50,
    )
    *logged, error = ended.stderr.splitlines()
    assert ended.returncode == 2
    assert error.startswith("[BK_INVALID_ARGUMENT]")
    lines = [json.loads(line) for line in logged]
    assert any("Traceback" in line.get("error", "") for line in lines)
