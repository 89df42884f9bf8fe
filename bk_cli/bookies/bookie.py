# SPDX-License-Identifier: Apache-2.0
"""``bk bookie``: runs a bookie in this process, and has the commands about the bookies of a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from bk_cli import options
from bk_cli.access import Access, access
from bk_core.errors import InvalidArgumentError
from bk_core.observe import log_level

if TYPE_CHECKING:
    from bookie_server.config import BookieConfig

DEFAULT_PORT = 3181
LIFELINE_GRACE_S = 2.0  # a clean stop would wait for bk local's ZooKeeper, which may end at the same time


@click.group()
def bookie() -> None:
    """A bookie is a server that stores entries of many ledgers and acknowledges them once they are on disk."""


@bookie.command("run")
@click.option(
    "--data",
    "data_dirs",
    type=click.Path(file_okay=False, path_type=Path),
    multiple=True,
    help="Data directory, made if missing. Give it once for each disk: ledgers are spread over all of them.",
)
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Settings in a TOML file (docs/configuration.md lists them). Options given here override them.",
)
@click.option("--port", type=click.IntRange(1, 65535), default=DEFAULT_PORT, help="TCP port for Apache's clients.")
@click.option(
    "--direct-port", type=click.IntRange(1, 65535), help="TCP port for our clients.  [default: --port + 2000]"
)
@click.option(
    "--grpc-port", type=click.IntRange(1, 65535), help="TCP port for our clients over gRPC.  [default: --port + 1000]"
)
@click.option(
    "--admin-port",
    type=click.IntRange(0, 65535),
    help="TCP port for metrics and health over HTTP; 0: none.  [default: --port + 3000]",
)
@click.option("--admin-host", metavar="HOST", default="127.0.0.1", help="Local address of the admin port.")
@click.option("--advertised-address", metavar="HOST", help="Host that clients connect to.  [default: this host's name]")
@click.option("--listen-address", metavar="HOST", default="0.0.0.0", help="Local address to listen on.")
@click.option(
    "--bookie-id",
    metavar="ID",
    help="The bookie's id, fixed at the first start.  [default: advertised address and port]",
)
@click.option("--allow-loopback", is_flag=True, help="Register an address that only this machine can reach.")
@click.option(
    "--init-cluster",
    is_flag=True,
    help="Make the cluster if there is none and this bookie has no data yet. Several bookies may do so at once.",
)
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Use it once, if the data of this bookie is lost for good: start with an empty or older directory. The bookie "
    "fences its ledgers, and answers UNKNOWN for what it lacks until that is repaired.",
)
@click.option("--lifeline-fd", type=int, hidden=True, help="End when this pipe closes (set by bk local).")
@options.metadata_service_uri
def run(
    config: Path | None, init_cluster: bool, accept_loss: bool, lifeline_fd: int | None, uri: str, **settings: Any
) -> int:
    """Run a bookie until SIGTERM or Ctrl-C."""
    from bookie_server.main import run as run_bookie

    log_level.log_as_server()
    if lifeline_fd is not None:
        from bk_cli.local import lifeline

        lifeline.end_with(lifeline_fd, LIFELINE_GRACE_S)
    return run_bookie(_configuration(config, uri, settings), accept_loss=accept_loss, init_cluster=init_cluster)


def _configuration(path: Path | None, uri: str, settings: dict[str, Any]) -> BookieConfig:
    """Return the settings of the file, overridden by those on the command line and in the environment."""
    from bookie_server.config import BookieConfig, load_config

    source = click.get_current_context().get_parameter_source
    given = {name: value for name, value in settings.items() if source(name) is not ParameterSource.DEFAULT}
    if path is not None:
        if source("uri") is not ParameterSource.DEFAULT:
            given["metadata_service_uri"] = uri
        return load_config(path, **given)
    if "data_dirs" not in given:
        raise InvalidArgumentError(
            "no data directory is named", remedy="give --data DIR, or --config FILE with data_dir or data_dirs"
        )
    return BookieConfig(metadata_service_uri=uri, **given)


@bookie.command("list")
@options.as_json
@access()
def list_bookies(access: Access, as_json: bool) -> None:
    """List all bookies: state, whether they answer, free space, lanes, and how many ledgers lack their copy."""
    from bk_cli.bookies import bookie_list

    bookie_list.list_bookies(access, as_json=as_json)


_ID = click.argument("bookie_id", metavar="ID")


@bookie.command("read-only")
@_ID
@click.argument("switch", type=click.Choice(("on", "off")))
@options.as_json
@access()
def read_only(access: Access, bookie_id: str, switch: str, as_json: bool) -> int:
    """Make a bookie refuse new entries, restarts included, until this is switched off; off also cancels a drain.

    It serves reads, fences and recoveries. Writers replace it with their next entry.
    """
    from bk_cli.bookies import bookie_leaving

    return bookie_leaving.set_read_only(access, bookie_id, is_on=switch == "on", as_json=as_json)


@bookie.command("drain")
@_ID
@options.dry_run
@click.option("--fence", is_flag=True, help="Recover ledgers that their writers keep open, which fences the writers.")
@click.option(
    "--wait",
    "wait_ms",
    type=options.TIME,
    help="How long to watch the drain; 0: not at all.  [default: until it is drained]",
)
@options.as_json
@access()
def drain(access: Access, bookie_id: str, dry_run: bool, fence: bool, wait_ms: int | None, as_json: bool) -> int:
    """Move all copies of a running bookie to other bookies. Then it may be stopped and removed.

    The bookie turns read-only, and auto-recovery moves its copies. The command shows what is left, and why ledgers
    wait. Ctrl-C ends only the watching: run the command again to see the progress. A drain is refused if no other
    bookie could take the copies; --dry-run only checks this.
    """
    from bk_cli.bookies import bookie_leaving

    if dry_run:
        bookie_leaving.may_leave(access, bookie_id, as_json=as_json)
        return 0
    wait_s = None if wait_ms is None else wait_ms / 1000
    return bookie_leaving.drain(access, bookie_id, fences=fence, wait_s=wait_s, as_json=as_json)


@bookie.command("remove")
@_ID
@options.as_json
@access()
def remove(access: Access, bookie_id: str, as_json: bool) -> None:
    """Remove a stopped bookie from the cluster: delete its cookie, if no ledger names the bookie."""
    from bk_cli.bookies import bookie_leaving

    bookie_leaving.remove(access, bookie_id, as_json=as_json)


_DIRECTORY = click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))


@bookie.command("check")
@_DIRECTORY
@click.option("--repair", is_flag=True, help="Write bad indexes anew. Entries are never touched.")
@options.as_json
def check(directory: Path, repair: bool, as_json: bool) -> int:
    """Verify every frame, index and checkpoint of a stopped bookie's data directory.

    Reports what is damaged, what a start will do about it, and how to go on. The exit code is 1 if anything is damaged.
    Nothing is written without --repair.
    """
    from bk_cli.bookies import bookie_check

    return bookie_check.check(directory, repair=repair, as_json=as_json)


@bookie.command("inspect")
@click.argument("which", metavar="DIR | ID")
@access()
@options.as_json
def inspect(which: str, access: Access, as_json: bool) -> int:
    """Show a stopped bookie's data directory DIR: its segments and ledgers. For the ID of a running bookie, show what
    its admin port reports: state, space, work in flight, commits, memory, and with --json its settings.

    The exit code is 1 if a running bookie is not ready.
    """
    if Path(which).is_dir():
        from bk_cli.bookies import bookie_check

        return bookie_check.inspect(Path(which), as_json=as_json)
    from bk_cli.bookies import bookie_live

    return bookie_live.inspect(access, which, as_json=as_json)
