# SPDX-License-Identifier: Apache-2.0
"""The client's side of our two lanes: the direct lane and gRPC."""
