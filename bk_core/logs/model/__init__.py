# SPDX-License-Identifier: Apache-2.0
"""Has the records of a named log, their bytes, and the rules by which one head follows another. Pure."""
