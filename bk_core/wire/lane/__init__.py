# SPDX-License-Identifier: Apache-2.0
"""The messages of our own lanes, the direct one and gRPC, for client and bookie."""
