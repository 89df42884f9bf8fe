# SPDX-License-Identifier: Apache-2.0
"""What runs while figures are measured: clusters, processes, settings, slow disks."""
