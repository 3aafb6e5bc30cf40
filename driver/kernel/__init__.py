# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Access to the Linux kernel, one file for each kind of object.

The objects are network namespaces, links, addresses, routes, qdiscs, sysctls, ethtool settings, VFs and RDMA devices.
Functions list the objects of a kind or change one object. This package imports `base`, `uplinks` and `topology`. It
knows nothing of claims, published devices or policies: `interface` decides what to change, and in which order.
"""

from __future__ import annotations
