# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Quotas that teams lend each other: from a site's inventory to objects of Kueue 0.19.

This package reads the variables `queues_*`, compares quotas with the devices of the fleet, and applies loans. It makes
claim templates that Kueue accepts, and the part of Kueue's configuration that they need. It imports `kube`, `cel`,
`vendors`, `scheduler`, `claims` and `holds`. It never reads from a node or a server.
"""

from __future__ import annotations
