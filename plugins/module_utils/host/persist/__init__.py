# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""What a run stores on the node: the wanted state, the program that applies this state at boot, the rollback timer.

This package imports all other subpackages of `host`; only the fabric module imports it.
"""

from __future__ import annotations
