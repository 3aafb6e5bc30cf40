# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Intel's QuickAssist VFs, as intel/intel-resource-drivers-for-kubernetes (cmd/kubelet-qat-plugin) publishes them.

No built-in kind describes these devices, so a claim requests them through a class with `cel`. Their only attribute is
`services`.
"""

from __future__ import annotations

from .knowledge import DriverKnowledge
from .offer import Vendor

VENDOR = Vendor(
    DriverKnowledge(
        name="qat.intel.com",
        title="Intel QAT DRA driver",
        kinds={},
        vendors=("8086",),
        kubernetes="1.34",
        source="repository intel/intel-resource-drivers-for-kubernetes, commit 3ef104c",
    )
)
