# SPDX-License-Identifier: Apache-2.0
"""Restores missing copies of entries, and moves copies."""
