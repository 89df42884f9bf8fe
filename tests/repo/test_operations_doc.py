# SPDX-License-Identifier: Apache-2.0
"""The commands with their options, tests, settings and metrics that ``docs/operations.md`` and its neighbours name
exist, and the page answers the complaints of operators one by one."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from bk_cli.main import COMMANDS, bk
from bk_core.client.config import ClientConfig
from bookie_server.admin.bookie_metrics import METRICS
from bookie_server.config import BookieConfig

ROOT = Path(__file__).parents[2]
PAGES = ("operations", "cli", "bookie", "compatibility", "storage", "python", "spark", "performance")
COMPLAINTS = 20
SHELL = """
    activeledgers autorecovery bookieformat bookieinfo bookiesanity check-db-ledgers-index clusterinfo convert-to-
    cookie_ decommissionbookie deleteledger endpointinfo forceauditchecks initbookie initnewcluster lastmark ledger
    ledgermetadata listbookies listfilesondisc listledgers listunderreplicated localconsistencycheck
    lostbookierecoverydelay metaformat nukeexistingcluster queryautorecoverystatus readjournal readledger readlog
    readlogmetadata rebuild-db- recover regenerate- simpletest triggeraudit updateBookieInLedger updatecookie
    updateledgers whatisinstanceid whoisauditor
"""
"""The commands of Apache's BookieShell 4.17.3. A name that ends in a sign stands for several commands."""
_CODE = re.compile(r"`([^`]+)`")
_SHELL = re.compile(r"^\$ (bk .*)$", re.MULTILINE)
_SETTING = re.compile(r"`([a-z]+(?:_[a-z0-9]+)+)`")


def _text(page: str) -> str:
    return (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")


def _commands(text: str) -> Iterator[str]:
    """Yield all commands of ``bk`` in a text: those in backquotes, and those typed in an example."""
    yield from (" ".join(found.split()) for found in _CODE.findall(text) if found.startswith("bk "))
    yield from (found.partition(" #")[0] for found in _SHELL.findall(text))


def _wrong(line: str) -> str:
    """Return why a command line could not be typed, whatever its arguments are; empty if it could."""
    words = shlex.split(line.replace("[", " ").replace("]", " ").replace("…", " "))[1:]
    found: click.Command = bk
    while words and isinstance(found, click.Group):
        if words[0].startswith("-"):  # of bk itself
            words = words[2 if words[0] == "--log-format" else 1 :]
            continue
        if words[0].isupper():  # any command
            return ""
        inner = found.get_command(click.Context(found), words[0])
        if inner is None:
            return f"there is no command {words[0]!r}"
        found, words = inner, words[1:]
    known = {name for each in found.params for name in (*each.opts, *each.secondary_opts)} | {"--help", "-h"}
    unknown = [name for word in words if (name := word.partition("=")[0]).startswith("-") and name not in known]
    return f"it has no {', '.join(unknown)}" if unknown else ""


@pytest.mark.parametrize("page", PAGES)
def test_every_command_that_a_page_names_can_be_typed(page: str) -> None:
    wrong = {line: why for line in _commands(_text(page)) if (why := _wrong(line))}
    assert wrong == {}


def test_the_page_of_commands_has_every_command() -> None:
    text = _text("cli")
    assert [name for name in COMMANDS if not re.search(rf"`bk {name}\b", text)] == []


def test_a_command_that_there_is_not_is_noticed() -> None:
    assert _wrong("bk ledger explain ID") == _wrong("bk -v bookie list [--json]") == ""
    assert _wrong("bk ledger heal 7") == "there is no command 'heal'"
    assert _wrong("bk ledger explain --why ID") == "it has no --why"


def test_every_complaint_is_answered_by_tests_that_there_are() -> None:
    _, _, section = _text("operations").partition("## Complaints of operators")
    complaints = section.split("\n- **")[1:]
    assert len(complaints) == COMPLAINTS
    there = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    for each in complaints:
        named = re.findall(r"^  - `(test_\w+)`$", each, re.MULTILINE)
        assert named, each
        assert set(named) <= there, each


def test_every_setting_and_metric_of_the_page_is_there() -> None:
    known = {each for kind in (BookieConfig, ClientConfig) for each in kind.__dataclass_fields__}
    known |= {each.name for each in METRICS} | {"cookie_delete"}  # a command of Apache's
    text = re.sub(r"^  - `test_\w+`$", "", _text("operations"), flags=re.MULTILINE)
    unknown = {name for name in _SETTING.findall(text) if name not in known}
    assert unknown == set()


@pytest.mark.parametrize("question", ["sick", "stuck", "lacks copies", "full", "turn this host off"])
def test_the_questions_of_an_operator_have_a_command_and_a_place_of_the_page(question: str) -> None:
    [row] = [line for line in _text("operations").splitlines() if line.startswith("|") and question in line]
    _, _, command, place, _ = (cell.strip() for cell in row.split("|"))
    assert any(not _wrong(each) for each in _commands(command)), row
    assert place


def test_every_command_of_apaches_shell_has_its_row() -> None:
    table = [line.split("|")[1:3] for line in _text("compatibility").splitlines() if line.startswith("| ")]
    named = {name.split()[0] for apache, _ in table for name in _CODE.findall(apache)}
    assert not {each for each in SHELL.split() if not any(name.rstrip("…") == each for name in named)}
    assert all(here.strip() for _, here in table)
