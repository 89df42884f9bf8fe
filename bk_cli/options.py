# SPDX-License-Identifier: Apache-2.0
"""Options that several commands share. Names are Spark's option names in kebab case (RULES K7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

from bk_core.access.secret_files import secret_of_file
from bk_core.errors import InvalidArgumentError
from bk_core.model import DIGEST_TYPE_NAMES
from bk_core.units import parse_size, parse_time_ms

Command = TypeVar("Command", bound=Callable[..., object])

DEFAULT_URI = "zk://localhost:2181/ledgers"
URI_VARIABLE = "BK_METADATA_SERVICE_URI"
PASSWORD_VARIABLE = "BK_LEDGER_PASSWORD"


def metadata_service_uri(
    command: Command, default: str | None = DEFAULT_URI, what: str = "Where the cluster's metadata is"
) -> Command:
    return click.option(
        "--metadata-service-uri",
        "uri",
        metavar="URI",
        envvar=URI_VARIABLE,
        default=default,
        help=f"{what} (or {URI_VARIABLE}).",
    )(command)


SECURITY_SETTINGS = (
    *("tls_ca_path", "tls_certificate_path", "tls_key_path", "tls_zookeeper"),
    *("security", "token_path", "zookeeper_auth_path", "zookeeper_acl"),
)
"""The client's settings that :func:`security` gives a command as arguments."""


def security(command: Command) -> Command:
    """Add the options of a connection: TLS, the token, the mode of security, and the identity and ACL in ZooKeeper."""
    command = click.option(
        "--zookeeper-acl", metavar="ACL", envvar="BK_ZOOKEEPER_ACL", default="", show_default=False,
        help="The ACL of nodes that are created in ZooKeeper: open (the default), creator, or a list.",
    )(command)  # fmt: skip
    command = click.option(
        "--zookeeper-auth-path", metavar="FILE", envvar="BK_ZOOKEEPER_AUTH_PATH", default="", show_default=False,
        help="Credentials for ZooKeeper: digest:USER:PASSWORD or sasl:USER:PASSWORD.",
    )(command)  # fmt: skip
    command = click.option(
        "--token-path", metavar="FILE", envvar="BK_TOKEN_PATH", default="", show_default=False,
        help="The token that identifies this client to bookies that accept tokens; sent over TLS only.",
    )(command)  # fmt: skip
    for name, what in (
        ("key", "Key of the certificate"),
        ("certificate", "This client's certificate, where bookies want one"),
        ("ca", "Speak TLS to bookies, and trust these authorities; nothing is sent unencrypted"),
    ):
        command = click.option(
            f"--tls-{name}-path", metavar="FILE", envvar=f"BK_TLS_{name.upper()}_PATH", default="",
            show_default=False, help=f"{what} (PEM).",
        )(command)  # fmt: skip
    command = click.option(
        "--security", type=click.Choice(("open", "secure", "mixed")), envvar="BK_SECURITY", default="open",
        help="secure: use only bookies that check rights. mixed: use Apache's bookies too.",
    )(command)  # fmt: skip
    return click.option(
        "--tls-zookeeper", is_flag=True, envvar="BK_TLS_ZOOKEEPER", help="Speak TLS to the metadata service, too."
    )(command)


def as_json(command: Command) -> Command:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line, for programs.")(command)


def dry_run(command: Command) -> Command:
    return click.option("--dry-run", is_flag=True, help="Say what would be done, and change nothing.")(command)


def ledger_password(command: Command) -> Command:
    return click.option(
        "--ledger-password",
        "--password",
        "password",
        metavar="TEXT",
        envvar=PASSWORD_VARIABLE,
        default="",
        show_default=False,
        help=f"Password of the ledger or log (better given as {PASSWORD_VARIABLE}: arguments are seen by all users).",
        callback=lambda _ctx, _param, value: str(value).encode("utf-8"),
    )(
        click.option(
            "--ledger-password-file",
            "password_file",
            metavar="FILE",
            envvar=f"{PASSWORD_VARIABLE}_FILE",
            default="",
            show_default=False,
            help="A file with only the password, instead of --ledger-password.",
        )(command)
    )


def password_of(password: bytes, file: str) -> bytes:
    """Return the password that the two options of :func:`ledger_password` give. Raises InvalidArgumentError."""
    if password and file:
        raise InvalidArgumentError(
            "--ledger-password and --ledger-password-file exclude each other", remedy="keep the file"
        )
    return secret_of_file(file, "--ledger-password-file") if file else password


def digest_type(*, default: str | None) -> Callable[[Command], Command]:
    shown = "" if default else " [default: the ledger's own]"
    return click.option(
        "--digest-type",
        type=click.Choice(DIGEST_TYPE_NAMES, case_sensitive=False),
        default=default,
        help=f"Digest of the entries.{shown}",
    )


def quorum(command: Command) -> Command:
    """Add ``--ensemble-size``, ``--write-quorum-size`` and ``--ack-quorum-size``: 3/3/2 by default (RULES E2)."""
    for name, size, text in (
        ("--ack-quorum-size", 2, "Copies on disk before an entry is confirmed."),
        ("--write-quorum-size", 3, "Copies of each entry."),
        ("--ensemble-size", 3, "Bookies that a ledger is spread over."),
    ):
        command = click.option(name, type=click.IntRange(min=1), default=size, help=text)(command)
    return command


class Number(click.ParamType):  # type: ignore[type-arg]  # generic only in newer versions of click
    """A number with a unit. ``parse`` returns None for a text that is no such number."""

    def __init__(self, name: str, parse: Callable[[str], int | None], examples: str) -> None:
        self.name, self._parse, self._examples = name, parse, examples

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> int:
        number = self._parse(value)
        if number is None:
            self.fail(f"{value!r} is not a {self.name} such as {self._examples}", param, ctx)
        return number


SIZE = Number("size", lambda text: parse_size(text) or None, "256m, 1g or 1048576")
"""The type of an option in bytes, at least 1."""
TIME = Number("time", parse_time_ms, "7d, 12h, 90s or 60000 (milliseconds)")
"""The type of an option in milliseconds; 0 is allowed."""
