# SPDX-License-Identifier: Apache-2.0
"""Finds the bookie's addresses, and makes the record that it publishes with its registration (RULES S8, M3, E3)."""

from __future__ import annotations

import ipaddress
import logging
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from bk_core.errors import (
    BookieIdentityError,
    InvalidArgumentError,
)
from bk_core.metadata.port import MetadataStore
from bk_core.model import DIRECTORY_PROPERTY, INCARNATION_PROPERTY, BookieId, BookieServiceInfo, Endpoint, plain_host
from bookie_server.config import BookieConfig
from bookie_server.storage.disk.cookie import DataDirectory

logger = logging.getLogger(__name__)

_LOOK_AGAIN_S = 0.2


def advertised_address(config: BookieConfig) -> str:
    """Return the host that clients connect to: the configured one, or else this host's name.

    Raises InvalidArgumentError for a loopback address that is not allowed (RULES E3).
    """
    address = plain_host(config.advertised_address or socket.getfqdn())
    if not _resolves(address):
        logger.warning("this host cannot resolve the advertised address %s; clients must be able to", address)
    if not config.allow_loopback and _is_loopback(address):
        raise InvalidArgumentError(
            "the advertised address is a loopback address: clients on other hosts would not reach this bookie",
            value=f"advertised_address={address}",
            remedy="give --advertised-address with this host's address, or --allow-loopback on a single machine",
        )
    return address


def _resolves(address: str) -> bool:
    try:
        return bool(socket.getaddrinfo(address, None))
    except OSError:
        return False


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        pass
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(address, None)}
    except OSError:
        return address == "localhost"
    return bool(found) and all(ipaddress.ip_address(each.split("%")[0]).is_loopback for each in found)


def service_info(directories: Sequence[DataDirectory], endpoints: Iterable[Endpoint]) -> BookieServiceInfo:
    """Return the record that this bookie registers: its services and its directories."""
    return BookieServiceInfo(directories[0].identity.bookie_id, tuple(endpoints), properties_of(directories))


def properties_of(directories: Sequence[DataDirectory]) -> dict[str, str]:
    """Return the first directory's incarnation, and the places of all directories on this machine. The order of the
    others does not matter."""
    by_incarnation = sorted(directories, key=lambda directory: directory.identity.incarnation)
    places = "; ".join(directory.place() for directory in by_incarnation)
    return {INCARNATION_PROPERTY: directories[0].identity.incarnation, DIRECTORY_PROPERTY: places}


def await_unregistered(
    store: MetadataStore, bookie_id: BookieId, path: str, properties: Callable[[], Mapping[str, str]], wait_s: float
) -> None:
    """Return once no process is registered under this id, except an earlier process of the directories of
    ``properties``.

    A copy of a directory passes every other check while its original is alive, because it has the original's cookie and
    incarnation. This is called before anything is written, here or in the store. Raises BookieIdentityError after
    ``wait_s``; the registration of a dead process goes away within that time.
    """
    deadline = time.monotonic() + wait_s
    while (found := store.bookie_info(bookie_id)) is not None:
        if found.is_of_directory_of(BookieServiceInfo(bookie_id, (), properties())):
            return
        if time.monotonic() >= deadline:
            where = ", ".join(endpoint.where for endpoint in found.endpoints) or "an unknown place"
            raise BookieIdentityError(
                "a bookie of this id is running already, from another data directory",
                value=f"{bookie_id} runs at {where}; {path} is not its directory, or a copy of it",
                remedy="start only one of the two; a new bookie needs an empty directory and another --bookie-id",
            )
        time.sleep(_LOOK_AGAIN_S)
