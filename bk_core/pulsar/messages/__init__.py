# SPDX-License-Identifier: Apache-2.0
"""From the entries of a topic's ledgers to rows of messages. Pure; needs pyarrow, which has Pulsar's compressions."""
