# SPDX-License-Identifier: Apache-2.0
"""On the driver: from what was selected to ranges of ledgers, and how much a task takes of them."""
