# SPDX-License-Identifier: Apache-2.0
"""The groups of figures that are measured with a client and three bookies. Each module lists its measurements."""
