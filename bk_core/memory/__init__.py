# SPDX-License-Identifier: Apache-2.0
"""Reusable memory: huge pages, slots for long messages, and the budget that writers share."""
