# SPDX-License-Identifier: Apache-2.0
"""Converts entries and columns from and to JSON."""
