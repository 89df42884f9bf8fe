# SPDX-License-Identifier: Apache-2.0
"""Reads and writes the orders of an operator to bookies. Each bookie has one record, at ``<root>-orders/<id>``. It may
exist before the bookie starts, and it survives restarts of the bookie (decision 0051)."""

from __future__ import annotations

import contextlib

from bk_core.errors import MetadataUnavailableError
from bk_core.metadata.layout import check_bookie_id
from bk_core.metadata.records import BookieOrder, decode_order, encode_order
from bk_core.metadata.tree.base import StorePart, first_loss
from bk_core.metadata.tree.tree import ANY_VERSION, WRITE_TRIES, NodeExistsError, NoNodeError
from bk_core.metadata.unreadable import NodeKind
from bk_core.model import BookieId
from bk_core.observe.audit import audited


class Orders(StorePart):
    """The part of a store that has the operators' orders to bookies."""

    def bookie_orders(self) -> dict[BookieId, BookieOrder]:
        folder = f"{self._root}-orders"
        try:
            names = self._tree.children(folder)
        except NoNodeError:
            return {}
        orders: dict[BookieId, BookieOrder] = {}
        with self.unreadable.whole_walk(NodeKind.ORDER, folder):
            for name, node in zip(names, self._tree.get_many([f"{folder}/{name}" for name in names]), strict=True):
                with self.unreadable.skipping(NodeKind.ORDER, f"{folder}/{name}"):
                    if node is not None:
                        orders[name] = decode_order(node[0])
        return orders

    def read_bookie_order(self, bookie_id: BookieId) -> BookieOrder | None:
        path = self._order_path(bookie_id)
        data = self._find(path)
        if data is None:
            self.unreadable.forget(path)
            return None
        with self.unreadable.reading(NodeKind.ORDER, path):
            return decode_order(data)

    def write_bookie_order(self, bookie_id: BookieId, order: BookieOrder | None) -> None:
        with audited("order-bookie", bookie=bookie_id, order="none" if order is None else order.order.name):
            self._write_order(bookie_id, order)

    def _write_order(self, bookie_id: BookieId, order: BookieOrder | None) -> None:
        path = self._order_path(bookie_id)
        if order is None:
            with contextlib.suppress(NoNodeError):
                self._delete_settled(path)
            return
        lost, data = None, encode_order(order)
        for _ in range(WRITE_TRIES):  # a second write has the same result
            try:
                self._tree.set(path, data, ANY_VERSION)
                return
            except NoNodeError:
                with contextlib.suppress(NodeExistsError):
                    self._create_with_parents(path, data)
                    return
            except MetadataUnavailableError as error:
                lost = first_loss(lost, error)
        raise lost or MetadataUnavailableError(
            "Other clients wrote the order again and again", value=path, remedy="try again"
        )

    def _order_path(self, bookie_id: BookieId) -> str:
        return f"{self._root}-orders/{check_bookie_id(bookie_id)}"
