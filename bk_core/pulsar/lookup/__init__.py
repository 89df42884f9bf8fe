# SPDX-License-Identifier: Apache-2.0
"""Looks facts of topics up: in the metadata store, at a broker, in the ledgers of schemas, and where a ledger ends."""
