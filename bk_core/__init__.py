# SPDX-License-Identifier: Apache-2.0
"""BookKeeper for Python: entries, protocol, metadata, client. Import the part you need; nothing is imported here."""

import os

__version__ = "0.1.0"

# Before anything imports grpc, which reads this then: its core would start its threads anew in a forked child, on what
# it shares with the parent, and half of the children crashed, whatever they did. Its Python part has it off by default.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
