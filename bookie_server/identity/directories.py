# SPDX-License-Identifier: Apache-2.0
"""Checks that the data directories belong to this bookie, and that none is missing, before the bookie answers anything
(RULES S8).

A bookie serves only from the directories it was made with. The cookie in each directory and the one in the metadata
store must agree. The store's record lists the bookie's directories, and a directory that is older than the record (a
restored copy) is refused. Each directory has an incarnation of its own, so that a file that was moved from one to
another is recognised as foreign.

A new, empty directory may join at any start at which no other directory is missing. It is recorded in the store before
anything is served from it; from then on it must not be missing.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace

from bk_core.errors import (
    BookieIdentityError,
    DataDirectoryError,
    InvalidArgumentError,
    MetadataConflictError,
    NoClusterError,
)
from bk_core.metadata.port import MetadataStore
from bk_core.metadata.records import Cookie, decode_cookie
from bk_core.model import BookieId, host_and_port
from bookie_server.config import BookieConfig
from bookie_server.identity.known_state import KnownDirectory, KnownState, Position, read_known_state, record_new
from bookie_server.identity.registration import await_unregistered, properties_of
from bookie_server.storage.disk.cookie import LOSS_NAME, DataDirectory, cookie_of, read_identity
from bookie_server.storage.disk.files import Files
from bookie_server.storage.disk.health import NO_SPACE
from bookie_server.storage.start.log_end import is_older

_ACCEPT = "if that data is gone for good: bk bookie run --accept-loss"


def find_cluster(config: BookieConfig, store: MetadataStore, *, make: bool) -> None:
    """Check that ``store`` has a cluster. With ``make``, create it if there is none and all of this bookie's
    directories are empty.

    A bookie that has data belongs to an existing cluster. A new cluster in its place would refuse all bookies of the
    old one, and would hinder its restoration. Raises NoClusterError and MetadataCorruptError. Writes nothing but the
    new cluster.
    """
    used = [str(path) for path in config.directories if DataDirectory.exists(os.path.abspath(path), files=Files())]
    if make and not used:
        store.initialize_cluster()
    try:
        store.instance_id()
    except NoClusterError as error:
        if not used:
            raise
        raise NoClusterError(
            "There is no cluster at this ledgers root, and this bookie has data of one",
            value=f"{error.value}; data in {', '.join(used)}",
            remedy="correct the URI, or put ZooKeeper's data back from a backup; a new cluster takes only bookies with "
            "empty directories",
        ) from error


def open_directories(
    config: BookieConfig,
    store: MetadataStore,
    address: str,
    port: int,
    *,
    files: Files | None = None,
    incarnation: str | None = None,
    accept_loss: bool = False,
) -> tuple[tuple[DataDirectory, ...], frozenset[int]]:
    """Open and lock the data directories; at the first start, make them. Write the same cookie to all of them and to
    the metadata store.

    Returns the directories, beginning with the one whose incarnation is the bookie's, and the numbers of those that
    lack data once stored in them, or in a directory that they replace. ``loss.py`` puts the ledgers of these in limbo
    before the bookie serves. There are no such numbers if a lost directory is not replaced.

    ``incarnation`` is that of a new directory; if there are several, theirs are derived from it. By default they are
    random. Raises DataDirectoryError, and BookieIdentityError if directories, store and configuration disagree about
    the owner or the list of the directories. With ``accept_loss``, directories that lack data are opened nevertheless;
    each then has the mark LOSS, and the caller must put its ledgers in limbo before it serves. ``accept_loss`` raises
    InvalidArgumentError if nothing is lost.
    """
    opening = _Opening(config, store, host_and_port(address, port), files or Files(), incarnation, accept_loss)
    try:
        return opening.run()
    except BaseException:
        opening.close()
        raise


class _Opening:
    """Opens the data directories of a bookie at one start."""

    def __init__(
        self,
        config: BookieConfig,
        store: MetadataStore,
        default_id: BookieId,
        files: Files,
        incarnation: str | None,
        accept_loss: bool,
    ) -> None:
        self._store, self._files, self._accept_loss = store, files, accept_loss
        self._incarnation, self._wait_s = incarnation, config.session_timeout_s
        self._paths = [os.path.abspath(each) for each in config.directories]
        used = [path for path in self._paths if DataDirectory.exists(path, files=files)]
        self._fresh = [path for path in self._paths if path not in used]
        # fixed at the first start, even if the address changes
        self._bookie_id = config.bookie_id or (read_identity(files, used[0]).bookie_id if used else default_id)
        self._instance_id = store.instance_id()
        self._opened: dict[str, DataDirectory] = {}
        self._known = KnownState()
        self._suspects: set[str] = set()  # paths
        self._used = used

    def run(self) -> tuple[tuple[DataDirectory, ...], frozenset[int]]:
        for path in self._used:
            self._opened[path] = DataDirectory.open(path, self._bookie_id, self._instance_id, files=self._files)
        self._store.sync()  # the last process of these directories may have just written to the store (RULES M5, S8)
        self._known = read_known_state(self._store, self._bookie_id)
        if not self._used:
            self._check_first_start()
        await_unregistered(self._store, self._bookie_id, self._where(), self._properties, self._wait_s)
        problem = self._find_problems()
        if self._used and self._accept_loss and problem is None:
            raise self._nothing_lost()
        if problem is not None and not self._accept_loss:
            raise problem
        paths = self._cookie_paths()
        self._make_fresh(paths)
        self._settle(cookie_of(self._bookie_id, self._instance_id, paths))
        ordered = sorted(
            (self._opened[path] for path in self._paths),
            key=lambda directory: directory.identity.incarnation != self._known.incarnation,
        )
        suspects = {number for number, directory in enumerate(ordered) if directory.path in self._suspects}
        return tuple(ordered), frozenset(suspects)

    def close(self) -> None:
        for directory in self._opened.values():
            directory.close()

    def _where(self) -> str:
        return ", ".join(self._paths)

    def _properties(self) -> Mapping[str, str]:
        return properties_of(list(self._opened.values())) if self._opened else {}

    # --- before anything is written ---------------------------------------------------------------------------------

    def _check_first_start(self) -> None:
        """Check a start with only new directories: no bookie may have used this id before, unless a loss is
        accepted."""
        free = self._is_id_free(self._incarnation)
        if not free and not self._accept_loss:
            raise BookieIdentityError(
                "a bookie of this id has stored data before, and this data directory is empty",
                value=f"{self._bookie_id}, {self._where()}",
                remedy=f"mount or name the directory it has used, or give another --bookie-id or --port; {_ACCEPT}",
            )
        if self._accept_loss and self._is_id_free(None):
            raise self._nothing_lost()

    def _is_id_free(self, incarnation: str | None) -> bool:
        """Return whether no bookie has used this id, except one with this incarnation. The state record outlives the
        bookie's removal."""
        return self._store.read_cookie(self._bookie_id) is None and self._known.incarnation in ("", incarnation)

    def _nothing_lost(self) -> InvalidArgumentError:
        return InvalidArgumentError(
            "there is no loss to accept: nothing is known that this data directory lacks",
            value=f"--accept-loss, {self._bookie_id}, {self._where()}",
            remedy="start without --accept-loss; it belongs in no script or unit file",
        )

    def _find_problems(self) -> BookieIdentityError | None:
        """Return the first reason why these directories must not serve, or None, and fill ``_suspects``. If an earlier
        start with lost data was cut short, all directories are suspects, because it is no longer known which ones
        were."""
        problem: BookieIdentityError | None = None
        for path in self._used:
            found = self._cookie_problem(self._opened[path]) or self._state_problem(self._opened[path])
            if found is not None:
                self._suspects.add(path)
                problem = problem or found
        missing = self._missing() if self._used else []
        if missing:
            problem = problem or self._missing_problem(missing)
        if problem is not None or self._accept_loss:
            self._suspects.update(self._fresh)
        return problem

    def _missing(self) -> list[str]:
        """Return the incarnations of directories that served once and are not given now."""
        served = [name for name, known in self._known.directories.items() if known.boot_count]
        if not self._known.incarnation:
            used = [each.identity for each in self._opened.values() if each.used_before]
            served = sorted({name for identity in used for name in identity.directories})
        given = {each.identity.incarnation for each in self._opened.values()}
        return [name for name in served if name not in given]

    def _missing_problem(self, missing: Sequence[str]) -> BookieIdentityError | None:
        directory = self._opened[self._used[0]]
        named = ", ".join(decode_cookie(directory.cookie).ledger_dirs)
        empty = f"; empty: {', '.join(self._fresh)}" if self._fresh else ""
        if len(self._known.directories) == 1:
            what = "this bookie was started with another data directory since"
        else:
            what = f"{len(missing)} of this bookie's data directories are missing"
        return BookieIdentityError(
            what,
            value=f"{self._bookie_id} has had {named}; given: {', '.join(self._used)}{empty}",
            remedy=f"mount and name all of them; {_ACCEPT}",
        )

    def _cookie_problem(self, directory: DataDirectory) -> BookieIdentityError | None:
        """Return why the store's cookie forbids this directory to serve, or None. At the first start it is None, and
        the cookie is written later."""
        known = self._store.read_cookie(self._bookie_id)
        if known is None and directory.used_before:
            return BookieIdentityError(
                "the metadata store has no cookie of this bookie although its data directory was used",
                value=f"{self._bookie_id}, {directory.path}",
                remedy=f"check the metadata service URI; a bookie that was removed needs an empty directory; {_ACCEPT}",
            )
        if known is not None and not _is_of(decode_cookie(directory.cookie), decode_cookie(known.value)):
            return BookieIdentityError(
                "the cookie in the metadata store is not that of this data directory",
                value=f"{self._bookie_id}, {directory.path}",
                remedy=f"name the bookie's own data directory; the store's cookie says which one that is; {_ACCEPT}",
            )
        return None

    def _state_problem(self, directory: DataDirectory) -> BookieIdentityError | None:
        """Return why this directory may lack acknowledged data, because it is older than the store's record (RULES S8).
        Return None if it is not older."""
        identity = directory.identity
        if directory.has_mark(LOSS_NAME):
            return BookieIdentityError(
                "an earlier start with lost data was interrupted: not all ledgers are in limbo yet",
                value=f"{identity.bookie_id}, {directory.path}",
                remedy="start it once more with: bk bookie run --accept-loss",
            )
        known = self._known.directories.get(identity.incarnation)
        if known is None and (not self._known.incarnation or not directory.used_before):
            return None  # the directory is from a start that ended before it was recorded
        theirs = known or self._known.directories[self._known.incarnation]
        here, there = f"boot {identity.boot_count} here", f"{theirs.boot_count} in the store"
        if known is None:
            what = "this bookie was started with another data directory since"
        elif known.boot_count >= identity.boot_count:
            what = "the data directory is older than the last start of this bookie"
        elif _lacks(directory, known.position):
            what = (
                "the data directory is older than what this bookie had stored: a restored snapshot, or its end is lost"
            )
            there = f"segment {known.position[0]} was durable up to {known.position[1]}"
        else:
            return None
        return BookieIdentityError(
            what,
            value=f"{identity.bookie_id}, {directory.path}: {here}, {there}",
            remedy=f"use the directory that it last ran with; {_ACCEPT}",
        )

    # --- writing ----------------------------------------------------------------------------------------------------

    def _cookie_paths(self) -> tuple[str, ...]:
        """Return the paths for the cookie. They stay unchanged unless directories come or go."""
        if not self._used or (self._accept_loss and self._missing()):
            return tuple(self._paths)
        cookies = [decode_cookie(self._opened[path].cookie).ledger_dirs for path in self._used]
        return tuple(dict.fromkeys((*max(cookies, key=len), *self._fresh)))

    def _make_fresh(self, cookie_paths: tuple[str, ...]) -> None:
        """Make the new directories. Their cookies and identities name all directories."""
        incarnations = {path: self._new_incarnation(number) for number, path in enumerate(self._fresh)}
        ours = [each.identity.incarnation for each in self._opened.values()] + list(incarnations.values())
        members = tuple(sorted(ours)) if len(ours) > 1 else ()
        for path in self._fresh:
            self._opened[path] = DataDirectory.create(
                path, self._bookie_id, self._instance_id,
                files=self._files, incarnation=incarnations[path], cookie_paths=cookie_paths, directories=members,
            )  # fmt: skip
        for directory in self._opened.values():
            directory.belong_to(members)

    def _new_incarnation(self, number: int) -> str:
        if self._incarnation is None:
            return str(uuid.uuid4())
        return str(uuid.uuid5(uuid.UUID(self._incarnation), str(number))) if number else self._incarnation

    def _settle(self, cookie: bytes) -> None:
        """Write the changes to the store and to all directories, in an order in which a crash at any point is
        harmless."""
        newcomers = [
            each.identity.incarnation
            for each in self._opened.values()
            if each.identity.incarnation not in self._known.directories
        ]
        if newcomers and self._known.incarnation and not self._accept_loss:
            record_new(self._store, self._bookie_id, newcomers)
        if self._accept_loss:
            for directory in self._opened.values():
                known = self._known.directories.get(directory.identity.incarnation, KnownDirectory())
                directory.begin_loss(known.boot_count + 1 if directory.used_before else 1)
        if self._write_cookies(cookie):
            self._settle_cookie(cookie)

    def _write_cookies(self, cookie: bytes) -> bool:
        """Write the cookie to all directories. Return False if a disk is too full for it, which may be the reason why
        another directory joins. Then the store keeps its old cookie, too, and a later start tries again."""
        done = True
        for directory in self._opened.values():
            if decode_cookie(directory.cookie) == decode_cookie(cookie):
                continue
            try:
                directory.write_cookie(cookie)
            except DataDirectoryError as error:
                is_full = isinstance(error.__cause__, OSError) and error.__cause__.errno in NO_SPACE
                if not is_full or not directory.used_before or self._accept_loss:
                    raise
                done = False
        return done

    def _settle_cookie(self, cookie: bytes) -> None:
        known = self._store.read_cookie(self._bookie_id)
        if known is not None and decode_cookie(known.value) == decode_cookie(cookie):
            return
        try:
            self._store.write_cookie(self._bookie_id, cookie, known.version if known else None)
        except MetadataConflictError:
            for directory in self._opened.values():
                problem = self._cookie_problem(directory)
                if problem is not None:
                    raise problem from None


def _is_of(here: Cookie, there: Cookie) -> bool:
    """Return whether the store's cookie ``there`` belongs to the directory with the cookie ``here``. The store's may
    name fewer directories, because a new one is written to the directories' cookies first."""
    same = replace(here, journal_dirs=(), ledger_dirs=()) == replace(there, journal_dirs=(), ledger_dirs=())
    return same and bool(there.ledger_dirs) and set(there.ledger_dirs) <= set(here.ledger_dirs)


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
