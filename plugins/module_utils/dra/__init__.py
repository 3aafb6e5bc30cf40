# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""Kubernetes DRA without a server: compiles a site's inventory to objects, and simulates the API server and scheduler.

docs/architecture.md lists its subpackages. It imports `topology` and the standard library, never Ansible, `host`
or a client of Kubernetes.
"""

from __future__ import annotations
