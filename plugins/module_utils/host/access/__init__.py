# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Reads and changes a node: files, programs, netlink, devlink, the boot loader, the users of a device.

All changes go through `system.System`, so that a test can make each of them fail. The package imports `topology` and
`uplinks`. It contains no code for single resources or wanted states.
"""

from __future__ import annotations
