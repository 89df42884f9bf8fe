# SPDX-License-Identifier: Apache-2.0
"""Transports: ways to talk to bookies."""
