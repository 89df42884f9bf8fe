# SPDX-License-Identifier: Apache-2.0
"""Names, records and positions of Pulsar's topics. Pure."""
