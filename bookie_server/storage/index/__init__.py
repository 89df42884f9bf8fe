# SPDX-License-Identifier: Apache-2.0
"""Which frames hold which entries, and the folded state of each ledger."""
