# SPDX-License-Identifier: Apache-2.0
"""Streams: the source that follows, the sink that writes each batch once."""
