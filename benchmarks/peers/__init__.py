# SPDX-License-Identifier: Apache-2.0
"""The peers that the product is compared with: Apache's client and bookies, Kafka, and the bare machine."""
