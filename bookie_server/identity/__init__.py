# SPDX-License-Identifier: Apache-2.0
"""Manages the identity of a bookie: opens its directories, registers it, and keeps its record in the metadata store."""
