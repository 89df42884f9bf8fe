# SPDX-License-Identifier: Apache-2.0
"""What the product is measured beside: Apache's client and bookies, Kafka, and the bare machine."""
