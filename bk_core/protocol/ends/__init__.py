# SPDX-License-Identifier: Apache-2.0
"""Where an open ledger ends: its LAC, how a reader follows it, and the end above it that a quorum shows."""
