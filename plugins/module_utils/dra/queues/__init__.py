# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Quotas that teams lend each other: from a site's inventory to objects of Kueue 0.19.

The language of the variables `queues_*`, sums against the devices of the fleet, loans, claim templates in the form that
Kueue accepts, and the part of Kueue's configuration that goes with them. It imports the rooms below it (`kube`, `cel`,
`vendors`, `scheduler`, `claims`). It never reads a node or a server.
"""

from __future__ import annotations
