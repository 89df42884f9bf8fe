# SPDX-License-Identifier: Apache-2.0
"""Encodes and decodes Apache BookKeeper's own wire, for bookie and client. Received bytes become columns, and columns
become bytes to send (docs/decisions/0035). ``connection`` reads received bytes into the types of ``runs``. ``v3`` and
``v2`` build the bytes to send, from ``bodies``.
"""
