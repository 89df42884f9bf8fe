# SPDX-License-Identifier: Apache-2.0
"""The records of a named log, their bytes, and how one head follows another. Pure."""
