# SPDX-License-Identifier: Apache-2.0
"""Finds facts about topics: in the metadata store, at a broker, in the ledgers of schemas, and at bookies."""
