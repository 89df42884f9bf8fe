# SPDX-License-Identifier: Apache-2.0
"""Parses and checks the user's options, selections and offsets."""
