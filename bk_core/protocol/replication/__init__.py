# SPDX-License-Identifier: Apache-2.0
"""Puts lost copies of a ledger back (decision 0049). Pure."""
