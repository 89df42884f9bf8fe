# SPDX-License-Identifier: Apache-2.0
"""The lane over Apache's wire. Its link translates frames and ranges into single adds and reads, and back
(docs/decisions/0036).

``packing`` converts a frame to requests, once for all bookies. ``adds`` and ``reads`` handle the two kinds of requests
of a connection, and ``exchange`` joins them, without a socket. ``batches`` reads over a second connection. ``lac``
reads LACs and fences. ``connection`` has the socket, and ``link`` the calls of the port.
"""
