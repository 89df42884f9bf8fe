# SPDX-License-Identifier: Apache-2.0
"""Decodes the values of a topic's messages into typed columns, by the topic's schema. Pure, but it needs pyarrow."""
