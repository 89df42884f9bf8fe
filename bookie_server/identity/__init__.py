# SPDX-License-Identifier: Apache-2.0
"""Who this bookie is: directories, registration, what is known of it, opening."""
