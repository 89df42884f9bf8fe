# SPDX-License-Identifier: Apache-2.0
"""Bounds on the resources that clients use at a bookie: connections, memory, requests, log lines."""
