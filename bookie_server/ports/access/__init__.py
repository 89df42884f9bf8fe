# SPDX-License-Identifier: Apache-2.0
"""Identities and rights of clients at a bookie's ports: certificates, tokens, roles and grants."""
