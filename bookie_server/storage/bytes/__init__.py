# SPDX-License-Identifier: Apache-2.0
"""The bytes of segments and their indexes: layout, reading, checks."""
