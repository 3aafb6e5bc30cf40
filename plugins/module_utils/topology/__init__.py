# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""A node's PCIe and NUMA topology: reading sysfs, the model, affinity, and the devices that the driver publishes.

This package imports only the standard library, and nothing else of the collection, so that other programs can include
it. Only `reader` reads files of the node.
"""

from __future__ import annotations
