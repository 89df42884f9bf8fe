# SPDX-License-Identifier: Apache-2.0
"""What the user said: options, selections and offsets, checked."""
