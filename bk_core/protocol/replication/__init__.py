# SPDX-License-Identifier: Apache-2.0
"""Restores the missing copies of a ledger (decision 0049). Pure."""
