# SPDX-License-Identifier: Apache-2.0
"""Reads topics of Apache Pulsar from their ledgers, without a broker. Nothing here writes.

``model/`` has the records of the metadata store, and ``messages/`` decodes entries into rows. Neither does I/O.
``topic.py`` has the public calls.
"""
