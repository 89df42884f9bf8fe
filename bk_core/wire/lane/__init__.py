# SPDX-License-Identifier: Apache-2.0
"""Has the messages of our own lanes, which are the direct lane and gRPC, for client and bookie."""
