# SPDX-License-Identifier: Apache-2.0
"""Every command in docker-compose.yml is one that ``bk`` understands: each goes through its own parser."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from bk_cli.main import bk

ROOT = Path(__file__).parent.parent.parent
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))[
    "services"
]
COMMANDS = {name: shlex.split(service["command"]) for name, service in SERVICES.items() if "command" in service}


def parse(arguments: list[str]) -> dict[str, Any]:
    """Return the options of the innermost command, parsed as ``bk`` would. Raises click's usage errors."""
    command: click.Command = bk
    parent: click.Context | None = None
    while True:
        context = command.make_context(command.name, list(arguments), parent=parent)
        if not isinstance(command, click.Group):
            return context.params
        _, found, arguments = command.resolve_command(context, [*context._protected_args, *context.args])
        assert found is not None
        command, parent = found, context


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_one_that_bk_parses(name: str) -> None:
    assert parse(COMMANDS[name])["uri"] == "zk://127.0.0.1:2181/ledgers"


def test_a_wrong_option_would_be_noticed() -> None:
    with pytest.raises(click.NoSuchOption):
        parse([*COMMANDS["bookie-1"], "--no-such-option"])


@pytest.mark.rule("E2")
def test_four_bookies_start_each_with_a_port_and_data_of_its_own() -> None:
    bookies = [name for name in SERVICES if name.startswith("bookie-")]
    assert len(bookies) == 4
    assert len({parse(COMMANDS[name])["port"] for name in bookies}) == 4
    assert len({SERVICES[name]["volumes"][0].split(":")[0] for name in bookies}) == 4


@pytest.mark.rule("E3")
def test_all_services_share_one_network_namespace_with_the_ports_that_are_published() -> None:
    joined = [name for name, service in SERVICES.items() if service.get("network_mode") == "service:zookeeper"]
    assert sorted([*joined, "zookeeper"]) == sorted(SERVICES)
    assert "127.0.0.1:3181-3185:3181-3185" in SERVICES["zookeeper"]["ports"]
    for first in (4181, 5181, 6181):
        assert f"127.0.0.1:{first}-{first + 3}:{first}-{first + 3}" in SERVICES["zookeeper"]["ports"]
    for name in (name for name in SERVICES if name.startswith("bookie-")):
        parsed = parse(COMMANDS[name])
        assert parsed["allow_loopback"]
        assert 3181 <= parsed["port"] <= 3184
        assert parsed["grpc_port"] is parsed["direct_port"] is parsed["admin_port"] is None, "1000, 2000, 3000 above"
        assert parsed["admin_host"] == "0.0.0.0", "what is published does not reach loopback in there"


def test_ports_are_published_to_this_machine_only() -> None:
    assert all(port.startswith("127.0.0.1:") for port in SERVICES["zookeeper"]["ports"])
