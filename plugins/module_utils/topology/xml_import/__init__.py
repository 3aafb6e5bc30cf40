# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Topologies from files that stand in for a node: one Python file per format; `read` chooses.

It imports `topology`. Only the module `topology_info` imports it, and the driver does not carry it.
"""

from __future__ import annotations
