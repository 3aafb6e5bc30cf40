# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""A node's configuration: read, planned, changed, read back, undone, and applied again at boot.

docs/architecture.md lists its subpackages. It imports `topology`, `uplinks` and pyroute2, never Ansible or `dra`, as it
also runs as a separate program at boot.
"""

from __future__ import annotations
