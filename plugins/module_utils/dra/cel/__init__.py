# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""CEL as the API server evaluates it for DRA: the language, cost limits, and the names that an expression uses.

The package imports `kube` and `apiserver`. It contains nothing about drivers or inventories.
"""

from __future__ import annotations
