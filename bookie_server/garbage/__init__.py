# SPDX-License-Identifier: Apache-2.0
"""Finds out which ledgers were deleted, and which copies are not needed here, on a thread of its own."""
