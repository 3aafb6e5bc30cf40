# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The interface of a resource, and a run that plans, applies, reads back and undoes changes.

The package imports `access` and `topology`, but no single resource: the caller passes the resources.
"""

from __future__ import annotations
