# SPDX-License-Identifier: Apache-2.0
"""Holds elections in the way of Apache's auditors, by a sequence of ephemeral votes. The process with the first vote is
elected. When its session ends, the process with the next vote follows. The marks, locks and settings of
under-replication use the retries of this file, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from bk_core.errors import MetadataUnavailableError, Outcome
from bk_core.metadata.layout import vote_number
from bk_core.metadata.records import decode_vote, encode_vote
from bk_core.metadata.tree.base import StorePart, first_loss
from bk_core.metadata.tree.tree import NodeStat, ensure_path
from bk_core.metadata.unreadable import NodeKind

T = TypeVar("T")

_TRIES = 10
"""The maximum number of attempts of a step. An attempt fails if other processes change the votes meanwhile, or if the
store does not answer."""
UNKNOWN_OWNER = "unknown (its vote cannot be read)"
"""The name that is shown for the elected process if its vote cannot be read. Such a vote counts nevertheless."""


class TryAgain(Exception):
    """Raised by one try whose node changed between its read and its write."""


class Election(StorePart):
    """The part of a store that holds elections. Each election has its folder."""

    def _vote(self, folder: str, owner: str, make_folders: Callable[[], None] = lambda: None) -> bool:
        """Cast this session's vote, unless it is cast already. Return whether it is the first vote."""

        def vote() -> bool:
            votes = self._votes(folder)
            if not any(stat.owner == self._tree.session_id for _, _, stat in votes):
                make_folders()
                ensure_path(self._tree, folder)
                self._tree.create(f"{folder}/V_", encode_vote(owner), ephemeral=True, sequential=True)
                raise TryAgain  # read again to see the rank of the vote; a vote whose answer was lost is found, too
            return votes[0][2].owner == self._tree.session_id

        return self._settled(vote, "An election")

    def _votes(self, folder: str) -> list[tuple[str, bytes, NodeStat]]:
        """Return the votes in the order in which they were cast."""
        votes = [(number, node) for node in self._nodes(folder) if (number := vote_number(node[0])) is not None]
        return [node for _, node in sorted(votes, key=lambda vote: vote[0])]

    def _withdraw(self, folder: str) -> None:
        for name, _, _ in self._votes(folder):
            self._delete_own(f"{folder}/{name}")

    def _elected(self, folder: str) -> str | None:
        votes = self._votes(folder)
        if not votes:
            return None
        name, data, _ = votes[0]
        owner = UNKNOWN_OWNER
        with (
            self.unreadable.whole_walk(NodeKind.VOTE, folder),
            self.unreadable.skipping(NodeKind.VOTE, f"{folder}/{name}"),
        ):
            owner = decode_vote(data)
        return owner

    def _settled(self, act: Callable[[], T], what: str) -> T:
        """Repeat ``act`` until it returns a result. It must be safe to repeat. Raises MetadataUnavailableError."""
        lost: MetadataUnavailableError | None = None
        for _ in range(_TRIES):
            try:
                return act()
            except TryAgain:
                continue
            except MetadataUnavailableError as error:
                lost = first_loss(lost, error)
        raise lost or MetadataUnavailableError(
            f"{what} changed at each of {_TRIES} tries", remedy="try again", outcome=Outcome.NOT_APPLIED
        )
