# SPDX-License-Identifier: Apache-2.0
"""Decodes the values of a topic's messages into typed columns, as the topic's schema says. Pure; needs pyarrow."""
