# SPDX-License-Identifier: Apache-2.0
"""Servers on this machine: ``bk local``, and the code that starts ZooKeeper, bookies and Java."""
