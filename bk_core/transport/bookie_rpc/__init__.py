# SPDX-License-Identifier: Apache-2.0
"""The lane over Apache's own wire: a link translates frames and ranges into single adds and reads, and back
(docs/decisions/0036).

``packing`` makes requests of a frame once for all bookies; ``adds`` and ``reads`` are the two halves of a connection;
``exchange`` is the whole of it, without a socket; ``batches`` is what a second connection reads; ``lac`` asks for LACs
and fences; ``connection`` has the socket, ``link`` the calls.
"""
