# SPDX-License-Identifier: Apache-2.0
"""The records of the cluster itself: its root, bookies, orders to them, and roles."""
