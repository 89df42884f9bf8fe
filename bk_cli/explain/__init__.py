# SPDX-License-Identifier: Apache-2.0
"""Commands that explain the state of a ledger or a log, and the placement of ledgers."""
