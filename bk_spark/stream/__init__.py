# SPDX-License-Identifier: Apache-2.0
"""Streams: a source that follows ledgers and logs, and a sink that writes each batch once."""
