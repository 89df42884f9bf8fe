# SPDX-License-Identifier: Apache-2.0
"""Implements Apache's layout over any tree of versioned nodes: ledgers, bookies, cookies, logs."""
