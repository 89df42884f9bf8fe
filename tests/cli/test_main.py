# SPDX-License-Identifier: Apache-2.0
"""The frame of ``bk``: exit codes, one line for an error, and what is imported when."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from bk_cli import exit_codes, main
from bk_core import errors


def all_errors() -> list[type[errors.BookKeeperError]]:
    classes = [errors.BookKeeperError]
    for cls in classes:
        classes.extend(cls.__subclasses__())
    return classes


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidArgumentError, 2),
        (errors.NoSuchLedgerError, 3),
        (errors.NoSuchLogError, 3),
        (errors.NoClusterError, 3),
        (errors.LedgerFencedError, 4),
        (errors.LedgerClosedError, 4),
        (errors.LogHasLeaderError, 4),
        (errors.MetadataConflictError, 4),
        (errors.MetadataUnavailableError, 5),
        (errors.NotEnoughBookiesError, 5),
        (errors.BookieUnreachableError, 5),
        (errors.IntegrityError, 6),
        (errors.NoSuchEntryError, 6),
        (errors.JavaMissingError, 1),
    ],
)
def test_the_exit_code_tells_the_kind_of_error(error: type[errors.BookKeeperError], code: int) -> None:
    assert exit_codes.exit_code_of(error) == code


def test_every_error_has_an_exit_code_that_is_not_success() -> None:
    assert {exit_codes.exit_code_of(cls) for cls in all_errors()} <= {1, 2, 3, 4, 5, 6, 7}


@pytest.mark.rule("E1")
def test_an_error_is_one_line_on_stderr(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    @click.command()
    def fails() -> None:
        raise errors.LedgerFencedError("fenced", value="ledger 17\nof two lines", remedy="open it anew")

    monkeypatch.setattr(main.LazyGroup, "get_command", lambda *_: fails)
    assert main.run(["ledger"]) == 4
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "[BK_LEDGER_FENCED] fenced; ledger 17 of two lines; open it anew. (outcome unknown)\n"


def test_the_return_value_of_a_command_is_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main.LazyGroup, "get_command", lambda *_: click.Command("x", callback=lambda: 74))
    assert main.run(["local"]) == 74


@pytest.mark.parametrize("arguments", [["no-such-command"], ["ledger", "read"], ["ledger", "read", "seventeen"]])
def test_wrong_usage_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(arguments) == 2
    assert "Usage: bk" in capsys.readouterr().err


@pytest.mark.parametrize("name", main.COMMANDS)
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([name, "--help"]) == 0
    assert "Usage: bk" in capsys.readouterr().out


def test_version_and_help_import_no_client_and_no_server() -> None:
    code = (
        "import sys; from bk_cli.main import run; run(['--version']); run(['--help']);"
        "print([m for m in sys.modules if m.split('.')[0] in ('numpy', 'grpc', 'kazoo', 'pyarrow', 'bookie_server')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.startswith("bk, version ")
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_list_of_bookies_imports_no_client_and_nothing_that_counts_or_draws() -> None:
    """``bk`` is started for each look: what it imports is most of its time."""
    code = (
        "import sys; from bk_cli.main import run; from bk_core.metadata import open_store\n"
        "from bk_core.model import BookieServiceInfo, Endpoint; from tests.kit import memory_store\n"
        "store = open_store('memory://m'); store.initialize_cluster()\n"
        "store.register_bookie(BookieServiceInfo('b', (Endpoint('direct', '127.0.0.1', 1, 'direct'),), {}))\n"
        "run(['bookie', 'list', '--json', '--metadata-service-uri', 'memory://m'])\n"
        "client = ('bk_core.client.bookkeeper', 'bk_core.client.reading.reader')\n"
        "heavy = ('numpy', 'crc32c', 'grpc', 'pyarrow', 'rich', *client)\n"
        "print(len(sys.modules), [m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    row, modules = done.stdout.splitlines()
    assert "BK_BOOKIE_UNREACHABLE" in row, "it was asked, over a lane"
    count, _, heavy = modules.partition(" ")
    assert heavy == "[]"
    assert int(count) < 330


def test_a_closed_pipe_is_not_a_traceback() -> None:
    code = (
        "import click, sys; from bk_cli import main\n"
        "def endless():\n"
        "    while True: click.echo('x' * 1000)\n"
        "main.LazyGroup.get_command = lambda *_: click.Command('x', callback=endless)\n"
        "sys.exit(main.run(['log']))"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.readline()
    child.stdout.close()
    assert child.wait(20) == 1
    assert child.stderr.read() == ""
    child.stderr.close()
