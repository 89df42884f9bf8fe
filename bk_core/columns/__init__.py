# SPDX-License-Identifier: Apache-2.0
"""Converts entries to Arrow columns and back. Files of this package import pyarrow. Other packages import these files
only when they need them, because a bookie works without pyarrow."""
