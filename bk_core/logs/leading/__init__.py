# SPDX-License-Identifier: Apache-2.0
"""Leads a log. Has the driver of a leadership, its requests, and its appends."""
