# SPDX-License-Identifier: Apache-2.0
"""Maintains storage beside commits: makes checkpoints, compacts and scrubs segments, and rebuilds indexes."""
