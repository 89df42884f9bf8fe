# SPDX-License-Identifier: Apache-2.0
"""Decodes the entries of a topic's ledgers into rows of messages. Pure, but it needs pyarrow, which has Pulsar's
codecs."""
