# SPDX-License-Identifier: Apache-2.0
"""Reads and writes the records of a cluster itself: its root, its bookies, the orders to them, and its roles."""
