# SPDX-License-Identifier: Apache-2.0
"""Reads ledgers: handles, ranges, single entries, columns and the quorum LAC."""
