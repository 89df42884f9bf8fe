# SPDX-License-Identifier: Apache-2.0
"""Rights and identities: roles, grants, TLS, tokens, secrets, ZooKeeper's ACLs, and the right that each operation
needs."""
