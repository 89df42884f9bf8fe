# SPDX-License-Identifier: Apache-2.0
"""The lane over Apache's own wire: a link translates frames and ranges into single adds and reads, and back
(docs/decisions/0036).

``packing`` turns a frame into requests, once for all bookies. ``adds`` and ``reads`` are the two halves of a
connection, and ``exchange`` joins them, without a socket. ``batches`` reads over a second connection. ``lac`` asks for
LACs and fences. ``connection`` has the socket, and ``link`` the calls of the port.
"""
