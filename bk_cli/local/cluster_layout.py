# SPDX-License-Identifier: Apache-2.0
"""The record in the data directory of a local cluster: the number of its bookies, and all ports."""

from __future__ import annotations

import fcntl
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from bk_cli.local.children import free_ports
from bk_core.errors import DataDirectoryError, InvalidArgumentError

HOST = "127.0.0.1"
BOOKIES = 4  # three make a ledger, and one is spare (RULES E2)
BOOKIE_PORT = 3181
LANE_PORTS_ABOVE = (1000, 2000)  # grpc_port and direct_port
PORTS_ABOVE = (
    *LANE_PORTS_ABOVE,
    3000,
)  # and of the admin port. A bookie's settings have the same numbers, but are not imported here
ZOOKEEPER_PORT = 2181


def free_bookie_ports(count: int) -> tuple[int, ...]:
    """Return the first port of each of ``count`` bookies. These and the bookies' other ports are free."""
    return free_ports(count, above=PORTS_ABOVE)


@dataclass(frozen=True, slots=True)
class ClusterLayout:
    """The properties that stay the same from start to start. ``zookeeper_port`` is 0 if the cluster uses a ZooKeeper
    that it did not start. ``apache`` means that the bookies are Apache's, and ``secure`` that all ports are of mode
    secure."""

    zookeeper_port: int
    bookie_ports: tuple[int, ...]
    apache: bool = False
    secure: bool = False


@dataclass(frozen=True, slots=True)
class WantedCluster:
    """The layout that the caller wants. None means the value of the first start, or the default. Port 0 means any free
    port."""

    bookies: int | None = None
    port: int | None = None
    zookeeper_port: int | None = None
    zookeeper_uri: str | None = None
    apache: bool = False
    secure: bool = False


def choose(data_dir: Path, wanted: WantedCluster) -> ClusterLayout:
    """Return the layout to start with. Raises InvalidArgumentError if it differs from what is wanted."""
    if wanted.secure and (wanted.apache or wanted.zookeeper_uri is not None):
        raise InvalidArgumentError(
            "--secure is for bookies and a ZooKeeper that are started here",
            value="--apache: Apache's bookies know no roles" if wanted.apache else "--zookeeper: its ports are its own",
            remedy="leave one of them out; docs/security.md says how to secure what runs already",
        )
    saved = load(data_dir)
    return _first(wanted) if saved is None else _again(data_dir, saved, wanted)


def _first(wanted: WantedCluster) -> ClusterLayout:
    count = BOOKIES if wanted.bookies is None else wanted.bookies
    first = BOOKIE_PORT if wanted.port is None else wanted.port
    zookeeper = ZOOKEEPER_PORT if wanted.zookeeper_port is None else wanted.zookeeper_port
    free = (
        free_bookie_ports(count + 1) if 0 in (first, zookeeper) else ()
    )  # all at once, so that no port is found twice
    ports = tuple(first + i for i in range(count)) if first else free[:count]
    if wanted.zookeeper_uri is not None:
        return ClusterLayout(0, ports, wanted.apache)
    return ClusterLayout(zookeeper or free[count], ports, wanted.apache, wanted.secure)


def _again(data_dir: Path, saved: ClusterLayout, wanted: WantedCluster) -> ClusterLayout:
    if (saved.zookeeper_port == 0) != (wanted.zookeeper_uri is not None):
        own = saved.zookeeper_port != 0
        raise InvalidArgumentError(
            f"the cluster of {data_dir} was made {'with a ZooKeeper of its own' if own else 'with --zookeeper'}",
            value=f"--zookeeper {wanted.zookeeper_uri}" if own else "--zookeeper is missing",
            remedy="start it as it was made, or choose another directory with --data",
        )
    if wanted.apache and not saved.apache:
        raise InvalidArgumentError(
            f"the bookies of {data_dir} are not Apache's, and ledgers may be on all of them",
            value="--apache",
            remedy="leave --apache out, or choose another directory with --data",
        )
    if wanted.secure and not saved.secure:
        raise InvalidArgumentError(
            f"the cluster of {data_dir} was made without --secure, and its nodes in ZooKeeper are open to everybody",
            value="--secure",
            remedy="leave --secure out, or choose another directory with --data",
        )
    _keep("--port", wanted.port, saved.bookie_ports[0])
    _keep("--zookeeper-port", wanted.zookeeper_port, saved.zookeeper_port)
    count = len(saved.bookie_ports) if wanted.bookies is None else wanted.bookies
    if count < len(saved.bookie_ports):
        raise InvalidArgumentError(
            f"the cluster of {data_dir} has {len(saved.bookie_ports)} bookies, and ledgers may be on all of them",
            value=f"--bookies {count}",
            remedy="leave --bookies out, or choose another directory with --data",
        )
    added = tuple(saved.bookie_ports[-1] + 1 + i for i in range(count - len(saved.bookie_ports)))
    return ClusterLayout(saved.zookeeper_port, saved.bookie_ports + added, saved.apache, saved.secure)


def _keep(option: str, given: int | None, saved: int) -> None:
    if given not in (None, 0, saved):
        raise InvalidArgumentError(
            "ports are fixed at the first start, because a bookie's address is its identity",
            value=f"{option} is {given}, the cluster has {saved}",
            remedy=f"leave {option} out, or choose another directory with --data",
        )


def lock(data_dir: Path) -> IO[bytes]:
    """Make the directory and lock it for this process until the returned file is closed. Raises DataDirectoryError."""
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        held = (data_dir / "lock").open("ab")
    except OSError as error:
        raise DataDirectoryError(
            "the data directory cannot be used",
            value=f"{data_dir}: {error.strerror}",
            remedy="choose another with --data",
        ) from error
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        held.close()
        raise DataDirectoryError(
            "another bk local runs in this data directory",
            value=str(data_dir),
            remedy="use that one, stop it, or choose another directory with --data",
        ) from error
    return held


def load(data_dir: Path) -> ClusterLayout | None:
    """Return the layout of an earlier start, or None. Raises DataDirectoryError if it cannot be read."""
    try:
        saved = json.loads((data_dir / "cluster.json").read_text(encoding="utf-8"))
        ports = tuple(int(port) for port in saved["bookie_ports"])
        flags = bool(saved.get("apache", False)), bool(saved.get("secure", False))
        return ClusterLayout(int(saved["zookeeper_port"]), ports, *flags)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise DataDirectoryError(
            "the record of the cluster cannot be read",
            value=f"{data_dir / 'cluster.json'}: {error}",
            remedy="write it anew: zookeeper_port and bookie_ports as they were",
        ) from error


def save(data_dir: Path, layout: ClusterLayout) -> None:
    """Keep the layout for the next start."""
    partial = data_dir / "cluster.json.new"
    partial.write_text(json.dumps(asdict(layout)) + "\n", encoding="utf-8")
    partial.replace(data_dir / "cluster.json")
