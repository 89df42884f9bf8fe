# SPDX-License-Identifier: Apache-2.0
"""What a process tells about itself: metrics, traces, the audit log, the log of slow operations, log levels."""
