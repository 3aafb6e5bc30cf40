# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""The basics of the Kubernetes API: limits, quantities, API versions, and reading JSON with bounds.

The package imports only the standard library. It contains nothing about sites or nodes.
"""

from __future__ import annotations
