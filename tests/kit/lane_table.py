# SPDX-License-Identifier: Apache-2.0
"""The lanes, for tests that are made for each of them. Imports no adapter: trials and forking programs take it, too."""

from __future__ import annotations

from bk_core.model import BOOKIE_RPC, DIRECT, GRPC
from bk_core.transport.lanes import LANES

OURS = tuple(lane for lane in LANES if lane != BOOKIE_RPC)
"""Those that begin with hello."""
PUBLISHED = (BOOKIE_RPC, *OURS)
"""As a bookie of ours offers them, in the order of its registration."""

SURVIVES_FORK = {DIRECT: True, GRPC: False, BOOKIE_RPC: True}
"""Whether a child may connect whose parent was connected."""
