# SPDX-License-Identifier: Apache-2.0
"""Codecs of Apache BookKeeper's own wire, for bookie and client: bytes in, columns out, and back (docs/decisions/0035).

``connection`` reads what was received, into what ``runs`` defines; ``v3`` and ``v2`` build what is sent, of ``bodies``.
"""
