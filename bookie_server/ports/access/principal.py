# SPDX-License-Identifier: Apache-2.0
"""The identity of a connection's client. Every port determines it once for each connection, and passes it on with
requests."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum


class Proof(Enum):
    """The way in which a client has authenticated."""

    NONE = "none"
    CERTIFICATE = "certificate"
    TOKEN = "token"


@dataclass(frozen=True, slots=True)
class Principal:
    """The client at ``peer`` (host:port, or words for a client without an address). ``identity`` is None if the client
    did not have to authenticate. An identity from a token is valid until ``until_s``, in seconds since 1970, and while
    the key with the fingerprint ``signer`` is trusted; the connection ends at most a minute after that."""

    peer: str
    identity: str | None = None
    proof: Proof = Proof.NONE
    until_s: float = math.inf
    signer: str = ""

    @property
    def host(self) -> str:
        """The peer without its port, which all connections from one machine share."""
        return self.peer.rpartition(":")[0] or self.peer

    def as_event(self) -> dict[str, str]:
        """Return the fields for the audit log."""
        if self.identity is None:
            return {"address": self.peer}
        return {"identity": self.identity, "proof": self.proof.value, "address": self.peer}

    def __str__(self) -> str:
        """Return a text for logs."""
        return self.peer if self.identity is None else f"{self.identity} ({self.proof.value}) at {self.peer}"


UNKNOWN = Principal("a client that nobody asked")
"""The principal of a stream without a port, in tests."""
