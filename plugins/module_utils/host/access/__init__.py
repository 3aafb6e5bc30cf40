# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""How a node is read and changed: files, programs, netlink, devlink, the boot loader, who uses a device.

All changes go through `system.System`, so that a test can make each of them fail. It imports `topology` and
`uplinks`. It knows no resource and no wanted state.
"""

from __future__ import annotations
