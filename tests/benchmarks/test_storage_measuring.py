# SPDX-License-Identifier: Apache-2.0
"""The measurements measure what they say, on a small scale, and leave nothing behind."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

WAIT_S = 120.0


@pytest.mark.alone
@pytest.mark.e2e
@pytest.mark.timeout(180)
def test_the_command_prints_an_object_a_figure_and_resumes_from_its_file(tmp_path: Path) -> None:
    kept, started = tmp_path / "kept", time.monotonic()
    command = [sys.executable, "-m", "benchmarks", "storage", "--only", "read_random", "--runs", "1", "--json"]
    done = subprocess.run(
        [*command, "--scale", "0.001", "--data", str(tmp_path / "disk"), "--resume", str(kept)],
        capture_output=True, text=True, check=False, timeout=WAIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    names = [json.loads(line)["name"] for line in done.stdout.splitlines()]
    assert names[0] == "read_random"
    assert "read_random" in kept.read_text()
    assert list((tmp_path / "disk").iterdir()) == []
    assert time.monotonic() - started < WAIT_S
