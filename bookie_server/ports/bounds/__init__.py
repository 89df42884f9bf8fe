# SPDX-License-Identifier: Apache-2.0
"""Bounds on what clients take from a bookie: connections, memory, requests, log lines."""
