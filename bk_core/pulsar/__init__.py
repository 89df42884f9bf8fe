# SPDX-License-Identifier: Apache-2.0
"""Topics of Apache Pulsar, read from the ledgers that hold them, without a broker. Nothing here writes.

``model/`` has the records of the metadata store, ``messages/`` makes rows of entries; both are pure. ``topic.py`` has
the public calls.
"""
