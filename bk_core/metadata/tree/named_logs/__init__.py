# SPDX-License-Identifier: Apache-2.0
"""The records of named logs: live ones, deleted ones, and the election of the worker that keeps them."""
