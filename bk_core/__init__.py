# SPDX-License-Identifier: Apache-2.0
"""Has BookKeeper for Python, with packages for entries, the protocol, metadata and the client. Import the module that
you need, because this package imports nothing."""

import os

__version__ = "0.1.0"

# With fork support, gRPC's core starts its threads again in a forked child, on state that it shares with the parent:
# half of the children crashed. gRPC's Python code leaves it off by default; the core reads the variable at import.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
