# SPDX-License-Identifier: Apache-2.0
"""Defines the names, records and positions of Pulsar's topics. Pure."""
