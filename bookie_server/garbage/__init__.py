# SPDX-License-Identifier: Apache-2.0
"""Finds out which ledgers were deleted, on a thread of its own."""
