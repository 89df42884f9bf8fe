# SPDX-License-Identifier: Apache-2.0
"""The nouns of a named log, their bytes, and what may follow what. Pure."""
