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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from bk_core.errors import (
    BookieIdentityError,
    DataDirectoryError,
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
from bookie_server.storage.log_end import is_older

_STATE_VERSION = 1
_LOOK_AGAIN_S = 0.2

Position: TypeAlias = tuple[int, int]
"""In the log: generation of a segment and offset in it."""

_ACCEPT = "if that data is gone for good: bk bookie run --accept-loss"


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
    accept_loss: bool = False,
) -> DataDirectory:
    """The data directory, locked, made at the first start, with the same cookie in the metadata store.

    ``incarnation`` is a new directory's; by default a fresh one. Raises BookieIdentityError when directory, store and
    configuration do not agree on whose it is, DataDirectoryError. With ``accept_loss`` a directory is taken that lacks
    what the store knows of, and its ``is_loss_unfinished`` is True: the caller must distrust it before it serves.
    InvalidArgumentError then where nothing is lost.
    """
    path, files = str(config.data_dir), files or Files()
    instance_id = store.instance_id()
    if DataDirectory.exists(path, files=files):
        bookie_id = config.bookie_id or _id_in(path, files)
        directory = DataDirectory.open(path, bookie_id, instance_id, files=files)
    else:
        bookie_id = config.bookie_id or f"{address}:{port}"
        if accept_loss or not _is_id_free(store, bookie_id, incarnation):
            _check_loss_accepted(store, bookie_id, path, accept_loss)
            await_unregistered(store, bookie_id, path, dict, config.session_timeout_s)
        directory = DataDirectory.create(path, bookie_id, instance_id, files=files, incarnation=incarnation)
    try:
        await_unregistered(store, bookie_id, path, lambda: properties_of(directory), config.session_timeout_s)
        problem = _cookie_problem(store, directory) or _state_problem(store, directory)
        if accept_loss and problem is None:
            raise _nothing_lost(bookie_id, path)
        if accept_loss:
            directory.begin_loss(_known_state(store, bookie_id).boot_count + 1 if directory.used_before else 1)
        elif problem is not None:
            raise problem
        _settle_cookie(store, directory)
    except BaseException:
        directory.close()
        raise
    return directory


def _id_in(path: str, files: Files) -> BookieId:
    """The id fixed at the first start, whatever the address is now."""
    return decode_identity(files.read_file(os.path.join(path, IDENTITY_NAME))).bookie_id


def _is_id_free(store: MetadataStore, bookie_id: BookieId, incarnation: str | None) -> bool:
    """Whether nobody has been this bookie; a state record outlives the removal of a bookie."""
    return store.read_cookie(bookie_id) is None and _known_state(store, bookie_id).incarnation in ("", incarnation)


def _check_loss_accepted(store: MetadataStore, bookie_id: BookieId, path: str, accept_loss: bool) -> None:
    """Before a directory is made under a known id, or with a loss accepted."""
    if not accept_loss:
        raise BookieIdentityError(
            "a bookie of this id has stored data before, and this data directory is empty",
            value=f"{bookie_id}, {path}",
            remedy=f"mount or name the directory it has used, or give another --bookie-id or --port; {_ACCEPT}",
        )
    if _is_id_free(store, bookie_id, None):
        raise _nothing_lost(bookie_id, path)


def _nothing_lost(bookie_id: BookieId, path: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        "there is no loss to accept: nothing is known that this data directory lacks",
        value=f"--accept-loss, {bookie_id}, {path}",
        remedy="start without --accept-loss; it belongs in no script or unit file",
    )


def _cookie_problem(store: MetadataStore, directory: DataDirectory) -> BookieIdentityError | None:
    """Why the store's cookie does not let this directory serve. None at the first start, which writes it."""
    bookie_id = directory.identity.bookie_id
    known = store.read_cookie(bookie_id)
    if known is None and directory.used_before:
        return BookieIdentityError(
            "the metadata store has no cookie of this bookie although its data directory was used",
            value=f"{bookie_id}, {directory.path}",
            remedy=f"check the metadata service URI; a bookie that was removed needs an empty directory; {_ACCEPT}",
        )
    if known is not None and decode_cookie(known.value) != decode_cookie(directory.cookie):
        return BookieIdentityError(
            "the cookie in the metadata store is not that of this data directory",
            value=f"{bookie_id}, {directory.path}",
            remedy=f"name the bookie's own data directory; the store's cookie says which one that is; {_ACCEPT}",
        )
    return None


def _settle_cookie(store: MetadataStore, directory: DataDirectory) -> None:
    """Have this directory's cookie in the store."""
    bookie_id = directory.identity.bookie_id
    known = store.read_cookie(bookie_id)
    if known is not None and decode_cookie(known.value) == decode_cookie(directory.cookie):
        return
    try:
        store.write_cookie(bookie_id, directory.cookie, known.version if known else None)
    except MetadataConflictError:
        problem = _cookie_problem(store, directory)
        if problem is not None:
            raise problem from None


def _state_problem(store: MetadataStore, directory: DataDirectory) -> BookieIdentityError | None:
    """Why this directory may lack what was acknowledged: it is older than what the store knows (RULES S8)."""
    identity = directory.identity
    if directory.is_loss_unfinished:
        return BookieIdentityError(
            "a start with lost data did not come to its end: not all ledgers are in limbo yet",
            value=f"{identity.bookie_id}, {directory.path}",
            remedy="start it once more with: bk bookie run --accept-loss",
        )
    known = _known_state(store, identity.bookie_id)
    here, there = f"boot {identity.boot_count} here", f"{known.boot_count} in the store"
    if known.incarnation not in ("", identity.incarnation):
        what = "this bookie was started with another data directory since"
    elif known.boot_count >= identity.boot_count:
        what = "the data directory is older than the last start of this bookie"
    elif _lacks(directory, known.position):
        what = "the data directory is older than what this bookie had stored: a restored snapshot, or its end is lost"
        there = f"segment {known.position[0]} was durable up to {known.position[1]}"
    else:
        return None
    return BookieIdentityError(
        what,
        value=f"{identity.bookie_id}, {directory.path}: {here}, {there}",
        remedy=f"use the directory that it last ran with; {_ACCEPT}",
    )


def _lacks(directory: DataDirectory, position: Position) -> bool:
    if position == (0, 0):
        return False
    try:
        return is_older(directory.files, directory.segments_path, directory.identity.incarnation_bytes, *position)
    except OSError as error:
        raise DataDirectoryError(
            "the segments of a data directory cannot be read",
            value=f"{directory.path}: {error}",
            remedy="check the disk",
        ) from error


@dataclass(frozen=True, slots=True)
class KnownState:
    """What the store knows of a bookie: its last start, and a position in its log, (generation, offset), below which
    everything was durable once; (0, 0) if none is known. Without a record the incarnation is empty."""

    incarnation: str = ""
    boot_count: int = 0
    position: Position = (0, 0)


def _known_state(store: MetadataStore, bookie_id: BookieId) -> KnownState:
    """Raises MetadataCorruptError."""
    record = store.read_bookie_state(bookie_id)
    if record is None:
        return KnownState()
    try:
        known = json.loads(record.value)
        generation, offset = known.get("position", (0, 0))
        return KnownState(str(known["incarnation"]), int(known["boot_count"]), (int(generation), int(offset)))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MetadataCorruptError("the state of a bookie cannot be read", value=bookie_id) from error


def record_state(store: MetadataStore, identity: Identity, newest_sealed: int, *, lost: bool = False) -> None:
    """Note this start at ``<root>-bookies/<id>``; the position known before stays, unless what was there is ``lost``.
    Raises MetadataConflictError if another process starts as well."""
    position = (0, 0) if lost else _known_state(store, identity.bookie_id).position
    state = {
        "boot_count": identity.boot_count,
        "incarnation": identity.incarnation,
        "newest_sealed": newest_sealed,
        "position": position,
        "v": _STATE_VERSION,
    }
    record = store.read_bookie_state(identity.bookie_id)
    store.write_bookie_state(identity.bookie_id, _encoded(state), record.version if record else None)


def record_position(store: MetadataStore, bookie_id: BookieId, position: Position) -> None:
    """Note how far this bookie's log is durable, so that an older copy of its directory is known for what it is. Raises
    MetadataConflictError if another process starts as this bookie."""
    record = store.read_bookie_state(bookie_id)
    if record is not None and _known_state(store, bookie_id).position < position:
        state = json.loads(record.value) | {"position": position}
        store.write_bookie_state(bookie_id, _encoded(state), record.version)


def _encoded(state: dict[str, object]) -> bytes:
    return json.dumps(state, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def service_info(directory: DataDirectory, address: str, port: int) -> BookieServiceInfo:
    """What this bookie publishes: only what it serves, and from which directory."""
    endpoint = Endpoint("grpc", address, port, "grpc")
    return BookieServiceInfo(directory.identity.bookie_id, (endpoint,), properties_of(directory))


def properties_of(directory: DataDirectory) -> dict[str, str]:
    """Incarnation, and the directory as it lies on this machine."""
    return {INCARNATION_PROPERTY: directory.identity.incarnation, DIRECTORY_PROPERTY: directory.place()}


def await_unregistered(
    store: MetadataStore, bookie_id: BookieId, path: str, properties: Callable[[], Mapping[str, str]], wait_s: float
) -> None:
    """Return once nobody is registered under this id, but for an earlier process of the directory of ``properties``.

    A copy of a directory passes every other check while its original is alive: its cookie and its incarnation are the
    original's. Asked before anything is written, here or in the store. Raises BookieIdentityError after ``wait_s``,
    within which the registration of a process that is dead goes away.
    """
    deadline = time.monotonic() + wait_s
    while (found := store.bookie_info(bookie_id)) is not None:
        if found.is_of_directory_of(BookieServiceInfo(bookie_id, (), properties())):
            return
        if time.monotonic() >= deadline:
            where = ", ".join(f"{endpoint.host}:{endpoint.port}" for endpoint in found.endpoints) or "an unknown place"
            raise BookieIdentityError(
                "a bookie of this id is running already, from another data directory",
                value=f"{bookie_id} runs at {where}; {path} is not its directory, or a copy of it",
                remedy="start only one of the two; a new bookie needs an empty directory and another --bookie-id",
            )
        time.sleep(_LOOK_AGAIN_S)
