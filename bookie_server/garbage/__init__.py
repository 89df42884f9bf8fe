# SPDX-License-Identifier: Apache-2.0
"""Which ledgers were deleted, and the thread that finds out."""
