# SPDX-License-Identifier: Apache-2.0
"""The identity of a connection's client. Every port finds it once for each connection, and passes it on with
requests."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum


class Proof(Enum):
    """How a client has authenticated."""

    NONE = "none"
    CERTIFICATE = "certificate"
    TOKEN = "token"


@dataclass(frozen=True, slots=True)
class Principal:
    """The client at ``peer`` (host:port, or words for one without an address). ``identity`` is None where it had to
    prove none, and holds until ``until_s``, in seconds since 1970, and while the key with the fingerprint ``signer``
    (of a token) is believed; the connection does not outlive that by more than a minute."""

    peer: str
    identity: str | None = None
    proof: Proof = Proof.NONE
    until_s: float = math.inf
    signer: str = ""

    @property
    def host(self) -> str:
        """The peer without its port: what all connections of a machine have in common."""
        return self.peer.rpartition(":")[0] or self.peer

    def as_event(self) -> dict[str, str]:
        """For the audit log."""
        if self.identity is None:
            return {"address": self.peer}
        return {"identity": self.identity, "proof": self.proof.value, "address": self.peer}

    def __str__(self) -> str:
        """For a log."""
        return self.peer if self.identity is None else f"{self.identity} ({self.proof.value}) at {self.peer}"


UNKNOWN = Principal("a client that nobody asked")
"""The principal of a stream without a port, in tests."""
