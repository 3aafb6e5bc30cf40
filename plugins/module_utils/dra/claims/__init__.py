# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Compiles a site's inventory to DeviceClasses, ResourceClaimTemplates and policies.

It contains the inventory language, the compiler, and the check whether the site's nodes can satisfy a claim. It imports
`kube`, `config`, `apiserver`, `cel`, `holds`, `vendors`, `scheduler` and `topology`. It never reads a node or a server.
"""

from __future__ import annotations
