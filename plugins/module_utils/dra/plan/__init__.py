# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""What fits on a fleet: how many more workloads, which devices none of them can use, and what a change would do.

This package imports `queues`, `scheduler`, `claims`, `alignment`, `holds`, `cel`, `vendors`, `apiserver` and `kube`. It
never talks to a server: the callers pass the objects to `reader`.
"""

from __future__ import annotations
