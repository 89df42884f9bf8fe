# SPDX-License-Identifier: Apache-2.0
"""Commands that explain: why a ledger, a log or a placement is as it is."""
