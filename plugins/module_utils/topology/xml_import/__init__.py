# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Topologies from XML files instead of a node: one Python file per format; `read` selects the format.

This package imports `topology`. Only `module_utils/topology_module.py` imports this package; the driver never does.
"""

from __future__ import annotations
