# SPDX-License-Identifier: Apache-2.0
"""Planning on the driver: turns the selection into ranges of ledgers, and shares them out among tasks."""
