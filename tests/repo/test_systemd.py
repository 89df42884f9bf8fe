# SPDX-License-Identifier: Apache-2.0
"""systemd accepts its units, and they name what exists in the code."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bookie_server.config import load_config
from bookie_server.main import EXIT_STORAGE_FAILED
from tests.repo.test_compose import parse

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "systemd"
UNITS = sorted(path.name for path in FOLDER.glob("*.service"))
PROGRAM = "/opt/bookkeeper/bin/bk"


def settings(unit: str) -> dict[str, list[str]]:
    """Return every setting of a unit with its values."""
    found: dict[str, list[str]] = {}
    for line in (FOLDER / unit).read_text(encoding="utf-8").splitlines():
        if line and not line.startswith(("#", "[")):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def test_there_is_a_unit_for_each_server() -> None:
    assert UNITS == ["bookie-autorecovery.service", "bookie.service"]


@pytest.mark.parametrize("unit", UNITS)
def test_its_command_is_one_that_bk_parses(unit: str, tmp_path: Path) -> None:
    (command,) = settings(unit)["ExecStart"]
    program, *words = shlex.split(command)
    assert program == PROGRAM
    parse([str(ROOT / "deploy" / "bookie.toml") if word.endswith("bookie.toml") else word for word in words])


def test_a_bookie_is_started_again_always_unless_its_disk_failed() -> None:
    said = settings("bookie.service")
    assert said["Restart"] == ["always"]
    assert said["RestartPreventExitStatus"] == [str(EXIT_STORAGE_FAILED)]
    assert said["StartLimitIntervalSec"] == ["0"], "else systemd gives up while ZooKeeper is away"
    assert said["Type"] == ["exec"], "a bookie does not speak sd_notify"


def test_its_data_is_where_it_may_write() -> None:
    config = load_config(ROOT / "deploy" / "bookie.toml")
    said = settings("bookie.service")
    assert said["StateDirectory"] == ["bookkeeper"]
    assert [path.parent for path in config.data_dirs] == [Path("/var/lib/bookkeeper")]
    assert said["RequiresMountsFor"] == ["/var/lib/bookkeeper"]


def test_every_line_of_the_sample_that_is_commented_out_is_a_setting_too(tmp_path: Path) -> None:
    text = (ROOT / "deploy" / "bookie.toml").read_text(encoding="utf-8")
    all_of_it = "\n".join(line.removeprefix("# ") if " = " in line else line for line in text.splitlines())
    (tmp_path / "bookie.toml").write_text(all_of_it, encoding="utf-8")
    config = load_config(tmp_path / "bookie.toml")
    assert config.security == "secure"
    assert config.zookeeper_auth_path == Path("/etc/bookkeeper/zookeeper-auth")


@pytest.mark.long
@pytest.mark.parametrize("unit", UNITS)
def test_systemd_takes_it_and_finds_it_well_locked_up(unit: str, tmp_path: Path) -> None:
    """Verify the unit with the tests' own program, because the program must exist."""
    text = (FOLDER / unit).read_text(encoding="utf-8").replace(PROGRAM, str(Path(sys.executable).parent / "bk"))
    (tmp_path / unit).write_text(text, encoding="utf-8")
    verified = analyze("verify", "--man=no", str(tmp_path / unit))
    assert (verified.returncode, verified.stderr, verified.stdout) == (0, "", "")
    wrong = tmp_path / "wrong" / unit
    wrong.parent.mkdir()
    wrong.write_text(text.replace("RestartSec=", "RestartSecs="), encoding="utf-8")
    assert "'RestartSecs'" in analyze("verify", "--man=no", str(wrong)).stderr
    exposed = analyze("security", "--offline=yes", "--no-pager", "--threshold=20", str(tmp_path / unit))
    assert exposed.returncode == 0, exposed.stdout.splitlines()[-1]


def analyze(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, check=False)
