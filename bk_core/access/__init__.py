# SPDX-License-Identifier: Apache-2.0
"""Has everything about rights and identities, which is roles, grants, TLS, tokens, secrets, ZooKeeper's ACLs, and the
right that each operation needs."""
