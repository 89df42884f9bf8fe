# SPDX-License-Identifier: Apache-2.0
"""Who this bookie is and where it says so: addresses, cookies, state record, registration (RULES S8, M3, E3).

A bookie serves only from the directory it was made with: the cookie in the directory and the one in the metadata store
must be the same, and a directory older than the store's record (a restored copy) is refused.
"""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import time

from bk_core.errors import (
    BookieIdentityError,
    InvalidArgumentError,
    MetadataConflictError,
    MetadataCorruptError,
)
from bk_core.metadata.port import MetadataStore
from bk_core.metadata.records import decode_cookie
from bk_core.model import DIRECTORY_PROPERTY, INCARNATION_PROPERTY, BookieId, BookieServiceInfo, Endpoint
from bookie_server.config import BookieConfig
from bookie_server.storage.cookie import IDENTITY_NAME, DataDirectory, Identity, decode_identity
from bookie_server.storage.files import Files

_STATE_VERSION = 1
_LOOK_AGAIN_S = 0.2


def advertised_address(config: BookieConfig) -> str:
    """The host that clients connect to: as configured, else this host's name.

    Raises InvalidArgumentError for a loopback address that is not allowed (RULES E3).
    """
    address = config.advertised_address or socket.getfqdn()
    if not config.allow_loopback and _is_loopback(address):
        raise InvalidArgumentError(
            "the advertised address is a loopback address: clients on other hosts would not reach this bookie",
            value=f"advertised_address={address}",
            remedy="give --advertised-address with this host's address, or --allow-loopback on a single machine",
        )
    return address


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


def open_directory(
    config: BookieConfig,
    store: MetadataStore,
    address: str,
    port: int,
    *,
    files: Files | None = None,
    incarnation: str | None = None,
) -> DataDirectory:
    """The data directory, locked, made at the first start, with the same cookie in the metadata store.

    ``incarnation`` is a new directory's; by default a fresh one. Raises BookieIdentityError when directory, store and
    configuration do not agree on whose it is, DataDirectoryError.
    """
    path, files = str(config.data_dir), files or Files()
    instance_id = store.instance_id()
    if DataDirectory.exists(path, files=files):
        bookie_id = config.bookie_id or _id_in(path, files)
        directory = DataDirectory.open(path, bookie_id, instance_id, files=files)
    else:
        bookie_id = config.bookie_id or f"{address}:{port}"
        _check_id_free(store, bookie_id, path)
        directory = DataDirectory.create(path, bookie_id, instance_id, files=files, incarnation=incarnation)
    try:
        await_unregistered(store, directory, config.session_timeout_s)
        _settle_cookie(store, directory)
        _check_state(store, directory.identity)
    except BaseException:
        directory.close()
        raise
    return directory


def _id_in(path: str, files: Files) -> BookieId:
    """The id fixed at the first start, whatever the address is now."""
    return decode_identity(files.read_file(os.path.join(path, IDENTITY_NAME))).bookie_id


def _check_id_free(store: MetadataStore, bookie_id: BookieId, path: str) -> None:
    if store.read_cookie(bookie_id) is not None:
        raise BookieIdentityError(
            "a bookie of this id exists already, with another data directory",
            value=f"{bookie_id}, {path} is new",
            remedy="name its data directory, or another --bookie-id or --port",
        )


def _settle_cookie(store: MetadataStore, directory: DataDirectory) -> None:
    """Compare the store's cookie with the directory's; write it if this start is the first."""
    bookie_id = directory.identity.bookie_id
    known = store.read_cookie(bookie_id)
    if known is None and directory.used_before:
        raise BookieIdentityError(
            "the metadata store has no cookie of this bookie although its data directory was used",
            value=f"{bookie_id}, {directory.path}",
            remedy="check the metadata service URI; a bookie that was removed needs an empty directory",
        )
    if known is None:
        try:
            store.write_cookie(bookie_id, directory.cookie, None)
        except MetadataConflictError:
            known = store.read_cookie(bookie_id)
    if known is not None and decode_cookie(known.value) != decode_cookie(directory.cookie):
        raise BookieIdentityError(
            "the cookie in the metadata store is not that of this data directory",
            value=f"{bookie_id}, {directory.path}",
            remedy="name the bookie's own data directory; the store's cookie says which one that is",
        )


def _check_state(store: MetadataStore, identity: Identity) -> None:
    """Refuse a directory that is older than what the store knows: entries acked since would be denied (RULES S8)."""
    record = store.read_bookie_state(identity.bookie_id)
    if record is None:
        return
    try:
        known = json.loads(record.value)
        incarnation, boot_count = str(known["incarnation"]), int(known["boot_count"])
    except (ValueError, KeyError, TypeError) as error:
        raise MetadataCorruptError("the state of a bookie cannot be read", value=identity.bookie_id) from error
    if incarnation != identity.incarnation or boot_count >= identity.boot_count:
        raise BookieIdentityError(
            "the data directory is older than the last start of this bookie, or another one",
            value=f"{identity.bookie_id}: boot {identity.boot_count} here, {boot_count} in the metadata store",
            remedy="use the directory that it last ran with, or an empty one under another bookie id",
        )


def record_state(store: MetadataStore, identity: Identity, newest_sealed: int) -> None:
    """Note this start at ``<root>-bookies/<id>``. Raises MetadataConflictError if another process starts as well."""
    state = {
        "boot_count": identity.boot_count,
        "incarnation": identity.incarnation,
        "newest_sealed": newest_sealed,
        "v": _STATE_VERSION,
    }
    record = store.read_bookie_state(identity.bookie_id)
    data = json.dumps(state, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    store.write_bookie_state(identity.bookie_id, data, record.version if record else None)


def service_info(directory: DataDirectory, address: str, port: int) -> BookieServiceInfo:
    """What this bookie publishes: only what it serves, and from which directory."""
    endpoint = Endpoint("grpc", address, port, "grpc")
    return BookieServiceInfo(directory.identity.bookie_id, (endpoint,), properties_of(directory))


def properties_of(directory: DataDirectory) -> dict[str, str]:
    """Incarnation, and the directory as it lies on this machine."""
    return {INCARNATION_PROPERTY: directory.identity.incarnation, DIRECTORY_PROPERTY: directory.place()}


def await_unregistered(store: MetadataStore, directory: DataDirectory, wait_s: float) -> None:
    """Return once nobody but an earlier process of this directory is registered under its id.

    A copy of a directory passes every other check while its original is alive: its cookie and its incarnation are the
    original's. Asked before anything is written, here or in the store. Raises BookieIdentityError after ``wait_s``,
    within which the registration of a process that is dead goes away.
    """
    bookie_id = directory.identity.bookie_id
    deadline = time.monotonic() + wait_s
    while (found := store.bookie_info(bookie_id)) is not None:
        if found.is_of_directory_of(BookieServiceInfo(bookie_id, (), properties_of(directory))):
            return
        if time.monotonic() >= deadline:
            where = ", ".join(f"{endpoint.host}:{endpoint.port}" for endpoint in found.endpoints) or "an unknown place"
            raise BookieIdentityError(
                "a bookie of this id is running already, from another data directory",
                value=f"{bookie_id} runs at {where}; {directory.path} may be a copy of its directory",
                remedy="start only one of the two; a new bookie needs an empty directory and another --bookie-id",
            )
        time.sleep(_LOOK_AGAIN_S)
