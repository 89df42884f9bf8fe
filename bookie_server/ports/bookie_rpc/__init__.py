# SPDX-License-Identifier: Apache-2.0
"""Apache's own wire on the bookie's side (docs/decisions/0036). Each connection is one stream of the engine.

``connection.py``, ``adds.py`` and ``reads.py`` translate requests and answers; ``entries.py`` turns entries into frames
and back. Only ``server.py`` has sockets.
"""
