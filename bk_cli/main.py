# SPDX-License-Identifier: Apache-2.0
"""The command ``bk``: finds the sub-command, runs it, and turns errors into one line and an exit code.

A sub-command's file is imported only when it is asked for, so that ``bk --version`` starts at once. Only this package
configures logging and, with a few exceptions (``tests/repo/test_tidy.py``), reads the environment.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

import bk_core
from bk_cli import exit_codes, output
from bk_core.errors import BookKeeperError, InvalidArgumentError

# name → the place of its click command, and its line of help, so that --help imports no command
COMMANDS: dict[str, tuple[str, str]] = {
    "local": ("bk_cli.local.local:local", "Run ZooKeeper and bookies on this machine."),
    "cluster": ("bk_cli.operate.new_cluster:cluster", "Make a cluster in ZooKeeper; watch its bookies."),
    "bookie": ("bk_cli.bookies.bookie:bookie", "Bookies: run, inspect, drain and remove them."),
    "autorecovery": ("bk_cli.bookies.replication:autorecovery", "Restore lost copies of ledgers."),
    "replication": (
        "bk_cli.bookies.replication:replication",
        "Show which ledgers lack copies; pause and resume repair.",
    ),
    "rebalance": ("bk_cli.bookies.rebalance:rebalance", "Move copies from full bookies to empty ones."),
    "ledger": ("bk_cli.data.ledger:ledger", "Ledgers: inspect, read, write, recover and delete them."),
    "log": ("bk_cli.data.log:log", "Named logs: inspect, read and maintain them."),
    "topic": ("bk_cli.data.topic:topic", "Topics of Apache Pulsar: inspect and read them."),
    "placement": ("bk_cli.explain.placement:placement", "Say which bookies ledgers get, and why."),
    "role": ("bk_cli.operate.role:role", "Roles: the rights of clients where bookies run in mode secure."),
    "token": ("bk_cli.operate.token:token", "Tokens: sign them, and make the file of keys that verify them."),
    "upkeep": (
        "bk_cli.data.upkeep:upkeep",
        "Maintain all logs: retention, compaction, deletion, by one elected worker.",
    ),
    "spark": ("bk_cli.data.spark:spark", "Inspect Spark checkpoints: positions, lag, mismatches."),
    "bench": ("bk_cli.operate.bench:bench", "Append to a running cluster for some seconds, and report the speed."),
    "web": ("bk_cli.operate.web:web", "Serve a page that shows the cluster, for a browser."),
    "completion": ("bk_cli.completion:completion", "Print the script that completes bk in a shell."),
    "doctor": ("bk_cli.operate.doctor:doctor", "Check Java, ZooKeeper, bookies and Spark; say what to do."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def documentation() -> str:
    """Return the folder of the documentation: that of the checkout, or that of the installed package."""
    checkout = Path(__file__).parent.parent / "docs"
    return str(checkout if checkout.is_dir() else Path(sys.prefix) / "share" / "doc" / "pyspark-bookkeeper")


@click.command(
    cls=LazyGroup,
    epilog=f"Documentation: {documentation()}",
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.version_option(bk_core.__version__, prog_name="bk")
@click.option(
    "-v", "--verbose", count=True, show_default=False, help="Log to stderr: -v for INFO, -vv for DEBUG and tracebacks."
)
@click.option(
    "--log-format",
    type=click.Choice(("text", "json")),
    default="text",
    envvar="BK_LOG_FORMAT",
    help="The form of log lines: text, or JSON objects (also BK_LOG_FORMAT).",
)
@click.option(
    "--audit-file",
    metavar="FILE",
    envvar="BK_AUDIT_FILE",
    help="Append each change in the metadata service to this file, as a JSON object (also BK_AUDIT_FILE).",
)
def bk(verbose: int, log_format: str, audit_file: str | None) -> None:
    """Run a BookKeeper cluster, inspect it, and read and write its ledgers and named logs.

    Commands take the cluster from --metadata-service-uri or BK_METADATA_SERVICE_URI. With --json they print for
    programs. The exit code tells what went wrong: 2 usage, 3 not found, 4 conflict, 5 unavailable, 6 integrity,
    7 denied.
    """
    level = (logging.ERROR, logging.INFO, logging.DEBUG)[min(verbose, 2)]  # our errors are one line and need no log
    logging.basicConfig(level=level, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if log_format == "json":
        from bk_cli.logs_as_json import JsonFormatter

        for handler in logging.getLogger().handlers:
            handler.setFormatter(JsonFormatter())
    if audit_file is not None:
        _audit_to(audit_file)


def _audit_to(path: str) -> None:
    """Write the audit log to this file. Raises InvalidArgumentError if it cannot be written."""
    from logging.handlers import WatchedFileHandler

    try:
        handler = WatchedFileHandler(path, encoding="utf-8")
    except OSError as error:
        raise InvalidArgumentError(
            "the audit log cannot be written",
            value=f"--audit-file {path}: {error.strerror or error}",
            remedy="name a file in a directory that this user can write to",
        ) from error
    logger = logging.getLogger("bk_core.audit")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code. Errors have been printed to stderr, one line each."""
    try:
        code = bk.main(args=None if arguments is None else list(arguments), prog_name="bk", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except BookKeeperError as error:
        output.print_error(error)
        return exit_codes.exit_code_of(type(error))
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return exit_codes.INTERRUPTED
    except BrokenPipeError:
        # `bk … | head` closed our output: nothing more can be printed there, not even at the exit of the interpreter
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exit_codes.OTHER


def main() -> None:
    """Run the console script ``bk`` (and ``pyspark-bookkeeper``)."""
    sys.exit(run())


if __name__ == "__main__":
    main()
