# SPDX-License-Identifier: Apache-2.0
"""What a Python process of Spark keeps: connections, its log line, work that need not be repeated."""
