# SPDX-License-Identifier: Apache-2.0
"""On the driver: from the selection to ranges of ledgers, and how much of them each task takes."""
