# SPDX-License-Identifier: Apache-2.0
"""Ways to bookies."""

import os

# gRPC's core would start its threads anew in a forked child, on what it shares with the parent: half of the children
# crashed, whatever they did. Its Python part has this off by default; the core reads it while grpc is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
