# SPDX-License-Identifier: Apache-2.0
"""How rows become entries and entries become rows, one module a codec."""
