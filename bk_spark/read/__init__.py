# SPDX-License-Identifier: Apache-2.0
"""Batch reads: the plans of tasks, and the reading in tasks."""
