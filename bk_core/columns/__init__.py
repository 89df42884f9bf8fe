# SPDX-License-Identifier: Apache-2.0
"""Entries as Arrow columns, and back. Files of this package import pyarrow, so other packages import them only when
they need them: a bookie works without pyarrow."""
