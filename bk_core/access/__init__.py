# SPDX-License-Identifier: Apache-2.0
"""Who may do what, in mode ``secure``: roles, grants, and what each operation of each port needs. Pure."""
