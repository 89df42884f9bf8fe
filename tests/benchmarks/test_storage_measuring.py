# SPDX-License-Identifier: Apache-2.0
"""The measurements measure what they say, on a small scale, and leave nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.running.settings import Settings
from benchmarks.storage import group
from benchmarks.storage.scratch import check_room, scratch
from bk_core.errors import InvalidArgumentError

WAIT_S = 120.0


def test_too_little_room_is_said_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = SimpleNamespace(total=100 << 30, free=12 << 30)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    check_room(tmp_path, 9 << 30, "all")
    with pytest.raises(InvalidArgumentError, match=r"11\.8 GB are needed .*12\.9 GB are free"):
        check_room(tmp_path, 11 << 30, "all")
    with pytest.raises(InvalidArgumentError, match="the part start_up"):
        list(group.StorageGroup().measure(["commit", "start_up"], tmp_path, Settings(runs=1)))
    assert list(tmp_path.iterdir()) == [], "the first part did not begin"


def test_what_a_killed_run_left_goes_with_the_next_and_what_a_living_one_uses_stays(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left, used, other = tmp_path / f"storage-{ended.pid}-a", tmp_path / f"storage-{os.getppid()}-b", tmp_path / "mine"
    for path in (left, used, other):
        path.mkdir()
    with scratch(tmp_path, 1, "x"):
        assert (left.exists(), used.exists(), other.exists()) == (False, True, True)


def test_a_terminated_run_leaves_nothing(tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom benchmarks.storage.scratch import scratch\n"
        "with scratch(Path(sys.argv[1]), 1, 'x') as path:\n"
        "    (path / 'data').write_bytes(b'much')\n    print('ready', flush=True)\n    time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGTERM)
        assert child.wait(WAIT_S) != 0
    assert list(tmp_path.iterdir()) == []


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
