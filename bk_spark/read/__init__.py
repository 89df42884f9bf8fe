# SPDX-License-Identifier: Apache-2.0
"""Batch reads: what a task is told, and what it does."""
