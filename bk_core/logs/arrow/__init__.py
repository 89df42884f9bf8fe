# SPDX-License-Identifier: Apache-2.0
"""Reads and writes logs as Arrow columns."""
