# SPDX-License-Identifier: Apache-2.0
"""Commands about data: ledgers, logs, their upkeep, and Spark's checkpoints."""
