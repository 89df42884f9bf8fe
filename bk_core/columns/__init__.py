# SPDX-License-Identifier: Apache-2.0
"""Entries as Arrow columns, and back. Files of this package import pyarrow, so others import them when they need them:
a bookie does without."""
