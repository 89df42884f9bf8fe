# SPDX-License-Identifier: Apache-2.0
"""Bounds the resources that clients use at a bookie: connections, memory, requests, and log lines."""
