# SPDX-License-Identifier: Apache-2.0
"""Clusters, processes, settings and slow disks for the measurements."""
