# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Checks whether allocated devices are aligned as promised, and prepares measurements of them.

The package imports `claims`, `scheduler`, `vendors`, `cel`, `kube` and `topology`. It never reads a node or a server:
its callers read the facts and objects.
"""

from __future__ import annotations
