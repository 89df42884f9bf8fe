# SPDX-License-Identifier: Apache-2.0
"""Our own lanes on the bookie's side: the direct lane and gRPC."""
