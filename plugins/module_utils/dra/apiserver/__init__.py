# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""What an API server does with a DRA object: decode it by the schema, drop fields of disabled feature gates, validate.

The package imports `kube`. It contains nothing about sites or nodes, and is not part of the driver's program.
"""

from __future__ import annotations
