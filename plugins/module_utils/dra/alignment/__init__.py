# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Whether allocated devices are aligned as promised, and what a measurement of them has to use.

It imports every other room of this package and `topology`; no other room imports it.
"""

from __future__ import annotations
