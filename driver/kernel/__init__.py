# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The Linux kernel's interfaces that the driver uses, one file for each kind of object.

Netlink, network namespaces, links, addresses, routes, qdiscs, sysctls, ethtool, VFs and RDMA devices: functions list
the objects of a kind or change one object. This package imports `base`, `uplinks` and `topology`. It does not depend on
claims, devices of the inventory or policies: `interface` decides what to change, and in which order.
"""

from __future__ import annotations
