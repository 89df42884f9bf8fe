# SPDX-License-Identifier: Apache-2.0
"""Restores lost copies of ledgers: one auditor for each cluster, and workers (decision 0049)."""
