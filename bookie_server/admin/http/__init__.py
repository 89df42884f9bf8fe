# SPDX-License-Identifier: Apache-2.0
"""The HTTP server of the admin port."""
