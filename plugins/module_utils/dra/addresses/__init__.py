# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The address plan of a site: which range of addresses each node has on each rail.

It imports `config` (the range of one node) and `kube`. It never looks at a node or a cluster. A range follows from the
plan and the node's index alone, so adding or removing a node changes no range of another node.
"""

from __future__ import annotations
