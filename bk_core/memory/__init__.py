# SPDX-License-Identifier: Apache-2.0
"""Memory that is used again: huge pages, slots for long messages, and the budget that writers share."""
