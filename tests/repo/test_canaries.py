# SPDX-License-Identifier: Apache-2.0
"""The search for canaries finds a secret in every form, in files and in the output of a test."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bk_core.entries.digest import ledger_key, mac_key
from tests.kit import canaries
from tests.kit.canaries import PASSWORD


@pytest.mark.parametrize(
    "text",
    [
        b"x" + PASSWORD + b"y",
        PASSWORD.hex().encode(),
        *(base64.b64encode(b"x" * before + PASSWORD + b"tail") for before in range(4)),
        repr({"key": ledger_key(PASSWORD)}).encode(),
        json.dumps({"key": ledger_key(PASSWORD).hex().upper()}).encode(),
        mac_key(PASSWORD),
        *canaries.OTHER,
    ],
)
def test_a_secret_is_found_in_each_form(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    file = tmp_path / "logs" / "bookie-1.log"
    file.write_bytes(b"nothing")
    assert canaries.check(tmp_path) == 1
    file.write_bytes(b"a line\n" + text + b"\n")
    with pytest.raises(AssertionError, match=r"bookie-1\.log"):
        canaries.check(tmp_path)


def test_where_secrets_belong_is_not_looked(tmp_path: Path) -> None:
    for name in ("segments/1.seg", "version-2/log.1", "server.key", "password.secret", "checkpoint-7"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(PASSWORD)
    assert canaries.check(tmp_path) == 0


@pytest.mark.long
def test_a_test_that_prints_or_logs_a_secret_fails(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_runtest_makereport\n")
    word = PASSWORD.decode()
    tests = (f"print('{word}')", f"logging.warning('with %s', '{word}')", f"os.write(2, b'{word}')", "print('fine')")
    lines = ["import logging, os", *(f"def test_{n}():\n    {line}" for n, line in enumerate(tests))]
    (tmp_path / "test_it.py").write_text("\n".join(lines))
    options = ["-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path)
    failed = {line.split()[1].rpartition("::")[2] for line in ended.stdout.splitlines() if line.startswith("FAILED")}
    assert failed == {"test_0", "test_1", "test_2"}, len(ended.stdout)
