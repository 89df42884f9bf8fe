# SPDX-License-Identifier: Apache-2.0
"""The lanes, for tests that run once for each lane. This file imports no adapter, because trials and programs that fork
import it too."""

from __future__ import annotations

from bk_core.model import BOOKIE_RPC, DIRECT, GRPC
from bk_core.transport.lanes import LANES

OURS = tuple(lane for lane in LANES if lane != BOOKIE_RPC)
"""The lanes on which a stream begins with hello."""
PUBLISHED = (BOOKIE_RPC, *OURS)
"""The lanes that our bookies offer, in the order of their registration."""

SURVIVES_FORK = {DIRECT: True, GRPC: False, BOOKIE_RPC: True}
"""For each lane, whether a forked child may connect if its parent was connected."""
