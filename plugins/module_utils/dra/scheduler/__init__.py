# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""An offline model of the scheduler's search for devices: the same order and result, and a reason if nothing fits.

The package imports `kube`, `cel`, `vendors` and `topology`. It never connects to a server, and does not use a site's
inventory.
"""

from __future__ import annotations
