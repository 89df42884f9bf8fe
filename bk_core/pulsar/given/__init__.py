# SPDX-License-Identifier: Apache-2.0
"""The bounds of a read of a topic and the form of its rows, as the caller gives them."""
