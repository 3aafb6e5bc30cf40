# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""What a resource is, and how a run plans, applies, reads back and undoes.

It imports `access` and `topology`. It never names a resource: the caller passes them.
"""

from __future__ import annotations
