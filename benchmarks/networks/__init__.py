# SPDX-License-Identifier: Apache-2.0
"""How costs grow with ledgers, clients and bookies, a model of them, and networks that are slow, far or lossy."""
