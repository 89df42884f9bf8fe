# SPDX-License-Identifier: Apache-2.0
"""Apache's own wire on the bookie's side (docs/decisions/0036): each connection is one stream of the engine.

``connection.py`` translates, ``adds.py`` and ``reads.py`` with it; ``entries.py`` turns entries into frames and back.
These have no socket; ``server.py`` has.
"""
