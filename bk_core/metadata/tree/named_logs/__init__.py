# SPDX-License-Identifier: Apache-2.0
"""Reads and writes the records of named logs and of deleted logs, and holds the election of the upkeep worker."""
