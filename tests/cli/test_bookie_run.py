# SPDX-License-Identifier: Apache-2.0
"""``bk bookie run``: settings from a file and from the command line. Each of these ends before anything is opened."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "bookie.toml"
    path.write_text(
        f'data_dir = "{tmp_path / "data"}"\nmetadata_service_uri = "zk://localhost:1/ledgers"\n'
        'advertised_address = "127.0.0.2"\nsegment_size_bytes = 67108864\n'
    )
    return path


def refused(*arguments: str | Path) -> str:
    """What is said to a bookie that advertises a loopback address: the address shows where it was taken from. In a
    process of its own, because a bookie tunes the allocator of its process."""
    command = [sys.executable, "-m", "bk_cli.main", "bookie", "run", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 2, done.stderr
    return done.stderr


@pytest.mark.long
def test_settings_come_from_the_file(config: Path) -> None:
    assert "advertised_address=127.0.0.2" in refused("--config", config)


@pytest.mark.long
def test_what_is_given_on_the_command_line_wins(config: Path) -> None:
    said = refused("--config", config, "--advertised-address", "127.0.0.3")
    assert "advertised_address=127.0.0.3" in said


@pytest.mark.long
def test_defaults_of_the_command_line_do_not_win(config: Path) -> None:
    config.write_text(config.read_text() + "port = 70000\n")
    assert "port=70000" in refused("--config", config)


def test_file_with_an_unknown_setting_is_refused(config: Path) -> None:
    config.write_text(config.read_text() + "segment_bytes = 1\n")
    assert "there is no such setting: segment_bytes" in refused("--config", config)


def test_bookie_without_a_data_directory_is_told_how_to_name_one() -> None:
    assert "--data DIR" in refused("--advertised-address", "127.0.0.1")


def test_options_alone_are_enough(tmp_path: Path) -> None:
    said = refused("--data", tmp_path / "data", "--advertised-address", "127.0.0.1")
    assert "loopback" in said
    assert not (tmp_path / "data").exists()


@pytest.mark.long
def test_data_may_be_given_several_times_but_no_directory_twice(tmp_path: Path) -> None:
    twice = ("--data", tmp_path / "data", "--data", tmp_path / "data")
    assert "named twice" in refused(*twice, "--advertised-address", "127.0.0.1")
    several = ("--data", tmp_path / "one", "--data", tmp_path / "two")
    assert "loopback" in refused(*several, "--advertised-address", "127.0.0.1")
