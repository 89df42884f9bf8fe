# SPDX-License-Identifier: Apache-2.0
"""Our own lanes on the client's side: the direct lane and gRPC."""
