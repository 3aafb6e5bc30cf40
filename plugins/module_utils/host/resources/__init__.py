# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The host resources, one module each with `wanted`, `read` and `apply`. `catalogue` lists them in their order.

The package imports `access`, `engine` and `topology`, never `persist`. Several resources share `owner` and `vfs`.
"""

from __future__ import annotations
