# SPDX-License-Identifier: Apache-2.0
"""Reads ledgers that Pulsar's offloaders copied to object storage, in the format of its jcloud offloader."""
