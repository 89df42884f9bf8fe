# SPDX-License-Identifier: Apache-2.0
"""``bk completion``: what is printed completes ``bk`` in a real bash; the others are click's for that shell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bk_cli import main


@pytest.mark.parametrize(
    ("shell", "words"), [("bash", "complete -o nosort -F"), ("zsh", "#compdef bk"), ("fish", "complete --no-files")]
)
def test_every_shell_gets_its_own_script(shell: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["completion", shell]) == 0
    said = capsys.readouterr().out
    assert words in said
    assert "_BK_COMPLETE" in said


def test_bash_completes_commands_and_options(tmp_path: Path) -> None:
    program = tmp_path / "bk"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m bk_cli.main "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    script = """
        eval "$(bk completion bash)"
        COMP_WORDS=(bk led) COMP_CWORD=1; COMPREPLY=(); _bk_completion bk; echo "${COMPREPLY[@]}"
        COMP_WORDS=(bk ledger list --st) COMP_CWORD=3; COMPREPLY=(); _bk_completion bk; echo "${COMPREPLY[@]}"
        COMP_WORDS=(bk ledger list --state c) COMP_CWORD=4; COMPREPLY=(); _bk_completion bk; echo "${COMPREPLY[@]}"
    """
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=60, check=True, env=environment
    )
    assert done.stdout.splitlines() == ["ledger", "--state", "closed"], done.stderr


def test_an_unknown_shell_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["completion", "tcsh"]) == 2
    assert "'bash', 'zsh', 'fish'" in capsys.readouterr().err
