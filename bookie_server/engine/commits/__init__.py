# SPDX-License-Identifier: Apache-2.0
"""Commits of one data directory: the queue, the groups, and what is reported about them."""
