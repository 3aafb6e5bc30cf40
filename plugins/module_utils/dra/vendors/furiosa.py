# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Furiosa's NPUs, as documented for furiosa-dra-driver, whose source is not public."""

from __future__ import annotations

from .filters import text
from .knowledge import DriverKnowledge, Kind
from .offer import Vendor

VENDOR = Vendor(
    DriverKnowledge(
        name="npu.furiosa.ai",
        title="Furiosa NPU DRA driver",
        vendors=("1ed2",),
        kubernetes="1.33",
        oldest="2025.2.0",
        source="Furiosa's guide to its DRA driver 2025.2.0",
        kinds={"gpu": Kind(filters={"uuid": (text("uuid"),)})},
        hints={
            "pcie_root": "Furiosa documents no attribute for the PCIe root; write a qualified name, such as "
            "npu.furiosa.ai/NAME, as align",
            "numa_node": "Furiosa documents no attribute for NUMA nodes; see the driver's ResourceSlices and use cel",
            "model": "Furiosa documents only the attribute uuid; see the driver's ResourceSlices and use cel",
        },
    )
)
