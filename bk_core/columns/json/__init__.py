# SPDX-License-Identifier: Apache-2.0
"""Entries and columns that are JSON."""
