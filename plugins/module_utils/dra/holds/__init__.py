# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Holds: devices that are kept for one job, by DeviceTaintRules that only its claims tolerate.

It imports `apiserver` and `kube`. It never talks to a server: it makes objects, and reads objects that its caller has
listed. It does not choose devices: the caller names them.
"""

from __future__ import annotations
