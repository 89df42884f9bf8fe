# SPDX-License-Identifier: Apache-2.0
"""BookKeeper for Python: entries, protocol, metadata, client. Import the part you need; nothing is imported here."""

import os

__version__ = "0.1.0"

# With fork support, gRPC's core starts its threads again in a forked child, on state that it shares with the parent:
# half of the children crashed. gRPC's Python part leaves it off by default; the core reads the variable at import.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
