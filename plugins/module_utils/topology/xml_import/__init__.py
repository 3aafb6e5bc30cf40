# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Topologies from files that stand in for a node: one file for each format, `read` chooses.

It imports `topology`, which never imports it but from the module `topology_info`. The driver does not carry it.
"""

from __future__ import annotations
