# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""Which interfaces carry a node's own traffic, according to the kernel.

This package imports only the standard library, and nothing else of the collection. The driver and `host` both use it,
so that they agree. It changes nothing on the node.
"""

from __future__ import annotations
