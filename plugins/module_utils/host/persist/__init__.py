# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Files and units that a run stores on the node: the wanted state, the program that applies it at boot, the rollback
timer.

It imports all other folders of this package; only the fabric module imports it.
"""

from __future__ import annotations
