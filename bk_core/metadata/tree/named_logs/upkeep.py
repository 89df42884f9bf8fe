# SPDX-License-Identifier: Apache-2.0
"""Holds the election of the worker that does the upkeep of named logs, and has the record of the budget that it used.
Both are at ``<root>-upkeep``, beside Apache's tree (decision 0057)."""

from __future__ import annotations

from bk_core.metadata.tree.election import Election
from bk_core.model import Versioned


class Upkeep(Election):
    """The part of a store that has the election of the upkeep worker, and the worker's record as opaque bytes."""

    @property
    def _votes_for_upkeep(self) -> str:
        return f"{self._root}-upkeep/election"

    @property
    def _upkeep_record(self) -> str:
        return f"{self._root}-upkeep/record"

    def vote_for_upkeep(self, owner: str) -> bool:
        return self._vote(self._votes_for_upkeep, owner)

    def withdraw_upkeep_vote(self) -> None:
        self._withdraw(self._votes_for_upkeep)

    def current_upkeep_worker(self) -> str | None:
        return self._elected(self._votes_for_upkeep)

    def read_upkeep_record(self) -> Versioned[bytes] | None:
        return self._read(self._upkeep_record)

    def write_upkeep_record(self, record: bytes, version: int | None) -> Versioned[bytes]:
        new_version = self._write_versioned(
            self._upkeep_record,
            record,
            version,
            conflict="Another worker does the upkeep of the logs now",
            remedy="none is needed: the other worker continues",
        )
        return Versioned(record, new_version)
