# SPDX-License-Identifier: Apache-2.0
"""Topics of Apache Pulsar, read from the ledgers that hold them, without a broker. Nothing here writes.

``model/`` has the records of the metadata store, and ``messages/`` decodes entries into rows; neither does I/O.
``topic.py`` has the public calls.
"""
