# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""The InterfaceConfig of lanewise.dev: its fields and their checks, used by rendering and by the driver.

It imports `kube` and `topology`. It never looks at a node: what only the kernel knows is checked by the driver.
"""

from __future__ import annotations
