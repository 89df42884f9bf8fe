# SPDX-License-Identifier: Apache-2.0
"""Reads the nodes of other systems that keep their data in ledgers, such as Pulsar. It never writes them."""

from __future__ import annotations

from bk_core.metadata.tree.base import StorePart
from bk_core.metadata.tree.tree import NoNodeError
from bk_core.model import Versioned


class ForeignNodes(StorePart):
    """The part of a store that reads any node by its absolute path."""

    def read_foreign_node(self, path: str) -> Versioned[bytes] | None:
        return self._read(path)

    def list_foreign_nodes(self, path: str) -> list[str] | None:
        try:
            return self._children(path)
        except NoNodeError:
            return None
