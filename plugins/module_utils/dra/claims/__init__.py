# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""From a site's inventory to DeviceClasses, ResourceClaimTemplates and policies.

The inventory language, the compiler, warnings, and whether claims can be satisfied by the site's nodes. It imports
the rooms below it (`kube`, `config`, `apiserver`, `cel`, `holds`, `vendors`, `scheduler`) and `topology`. It never
reads a node or a server.
"""

from __future__ import annotations
