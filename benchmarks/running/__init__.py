# SPDX-License-Identifier: Apache-2.0
"""Runs the measurements: starts clusters and processes, holds settings, and makes disks slow."""
