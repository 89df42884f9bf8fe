# SPDX-License-Identifier: Apache-2.0
"""The identity and settings of a client's connections to bookies, the same for all its links."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bk_core.access.secret_files import TokenFile
    from bk_core.access.tls import Tls
    from bk_core.transport.wallet import Wallet


@dataclass(frozen=True, slots=True)
class Caller:
    """What the links of a client have in common.

    ``instance_id`` is the cluster's, which hello compares unless it is empty (L1). ``client`` is a name for the
    bookie's log. ``connect_timeout_s`` bounds connecting and hello together. ``lanes``: best first; empty: all there
    are. ``batch_reads``: a lane that reads entry by entry may open a second connection on which it need not. ``tls``:
    every connection is one over TLS, whatever the bookie registered. ``wallet``: only bookies that allow nothing
    without a grant are used, and all links keep their grants there. ``mixed``: also bookies that have Apache's wire
    alone, which knows no grants. ``token``: identifies this client, over TLS only.
    """

    instance_id: str = ""
    client: str = "pyspark-bookkeeper"
    connect_timeout_s: float = 5.0
    lanes: tuple[str, ...] = ()
    batch_reads: bool = True
    tls: Tls | None = None
    wallet: Wallet | None = None
    mixed: bool = False
    token: TokenFile | None = None
