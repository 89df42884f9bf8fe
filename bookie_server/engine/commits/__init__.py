# SPDX-License-Identifier: Apache-2.0
"""Commits the frames of one data directory: queues them, writes them in groups, and reports the results."""
