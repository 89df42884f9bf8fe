# SPDX-License-Identifier: Apache-2.0
"""Has the names, records and positions of Pulsar's topics. Pure."""
