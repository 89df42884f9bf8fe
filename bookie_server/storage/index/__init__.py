# SPDX-License-Identifier: Apache-2.0
"""The index: which frames hold which entries, and the folded state of each ledger."""
