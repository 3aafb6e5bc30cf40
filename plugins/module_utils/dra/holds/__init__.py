# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Holds: DeviceTaintRules that reserve devices for one job, whose claims alone tolerate them.

This package imports `apiserver` and `kube`. It never talks to a server: it creates objects, and reads objects that the
caller has listed. The caller chooses the devices.
"""

from __future__ import annotations
