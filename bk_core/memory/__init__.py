# SPDX-License-Identifier: Apache-2.0
"""Has reusable memory, which is huge pages, slots for long messages, and the budget that writers share."""
