# SPDX-License-Identifier: Apache-2.0
"""Batch writes: ledgers of tasks, published in one step."""
