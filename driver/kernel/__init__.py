# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The Linux kernel's interfaces as the driver needs them: one file for each kind of object.

Netlink, network namespaces, links, addresses, routes, qdiscs, sysctls, ethtool, VFs and RDMA devices: functions
that read them and functions that change one of them. It imports `base`, `uplinks` and `topology`. It knows no
claim, no device of the inventory and no policy: what to change, and in which order, is decided in `interface`.
"""

from __future__ import annotations
