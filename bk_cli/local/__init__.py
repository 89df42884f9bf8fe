# SPDX-License-Identifier: Apache-2.0
"""Servers on this machine: ``bk local`` and what starts ZooKeeper, bookies and Java."""
