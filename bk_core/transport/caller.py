# SPDX-License-Identifier: Apache-2.0
"""Holds the identity and the settings of a client's connections to bookies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bk_core.access.secret_files import TokenFile
    from bk_core.access.tls import Tls
    from bk_core.transport.wallet import Wallet


@dataclass(frozen=True, slots=True)
class Caller:
    """The identity and the settings that all links of a client share.

    ``instance_id`` is the id of the cluster, which hello compares unless it is empty (L1). ``client`` is the client's
    name in the bookie's log. ``connect_timeout_s`` limits connecting and hello together. ``lanes`` are the lanes to
    use, best first; if it is empty, all lanes are used. With ``batch_reads``, a lane that reads entry by entry may open
    a second connection, on which it reads batches. With ``tls``, every connection uses TLS, whatever the bookie
    registered.

    With ``wallet``, all links keep their grants in it, and only bookies that require grants are used. With ``mixed``,
    bookies that have only Apache's wire, which carries no grants, are used, too. ``token`` identifies this client; it
    is sent only over TLS.
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
