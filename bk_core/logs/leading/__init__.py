# SPDX-License-Identifier: Apache-2.0
"""The leadership of a log: its driver, its requests, and its appends."""
