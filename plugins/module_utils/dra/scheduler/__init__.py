# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The scheduler's search for devices, offline: the same order, the same result, and a reason if nothing fits.

It imports `kube`, `cel`, `vendors` and `topology`. It never talks to a server, and knows no inventory of a site.
"""

from __future__ import annotations
