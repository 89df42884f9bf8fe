# SPDX-License-Identifier: Apache-2.0
"""Decodes values of AVRO schemas into Arrow arrays."""
