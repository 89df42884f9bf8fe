# SPDX-License-Identifier: Apache-2.0
"""The pure machines of named logs: leadership, and every change of a log's head."""
