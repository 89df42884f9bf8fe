# SPDX-License-Identifier: Apache-2.0
"""Groups of figures that a client and three bookies are measured by: each lists its measurements."""
