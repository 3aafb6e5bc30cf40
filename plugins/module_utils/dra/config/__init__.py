# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""Configuration that rendering and the driver both read: its fields and their checks.

`interface_config` and `tenancy` are the opaque configurations of claims and classes. `share_settings`, `rail_range` and
`selector_settings` read the settings of a node's driver. `share_rates` computes the rates of the shares of a NIC.

The package imports `kube` and `topology`. It never looks at a node: the driver checks what only the kernel knows.
"""

from __future__ import annotations
