# SPDX-License-Identifier: Apache-2.0
"""Writes ledgers. Has the writer's handle, its queue of appends, and the bounds on its memory."""
