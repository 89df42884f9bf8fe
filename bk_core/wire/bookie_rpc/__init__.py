# SPDX-License-Identifier: Apache-2.0
"""Codecs of Apache BookKeeper's own wire, for bookie and client: bytes in, columns out, and back (docs/decisions/0035).

``connection`` reads received bytes into the types of ``runs``. ``v3`` and ``v2`` build the bytes to send, from
``bodies``.
"""
