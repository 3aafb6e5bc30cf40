# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Google's TPUs, as kubernetes-sigs/dra-driver-google-tpu (cmd/tpu-dra-kubeletplugin/manager.go) publishes them.

A claim has to request all chips of a node: the driver prepares all or none. Names and attributes come from /dev and
from labels of the Node, which a probe does not read.
"""

from __future__ import annotations

from .filters import text
from .knowledge import DriverKnowledge, Gate, Kind
from .offer import Vendor

VENDOR = Vendor(
    DriverKnowledge(
        name="tpu.google.com",
        title="Google TPU DRA driver",
        vendors=("1ae0",),
        kubernetes="1.34",
        source="repository kubernetes-sigs/dra-driver-google-tpu, commit 3fb71e3",
        gates={"NodeAllocatableResources": Gate(), "ConsumableShares": Gate()},
        kinds={
            "gpu": Kind(
                filters={
                    "model": (text("accelerator", "contains"),),
                    "architecture": (text("tpuGen"),),
                    "uuid": (text("uuid"),),
                }
            )
        },
        hints={
            "pcie_root": "tpu.google.com publishes no location of its chips; leave align out",
            "numa_node": "tpu.google.com publishes no NUMA node; leave align out",
            "pci_address": "ask for the model with all: true; the driver prepares all chips of a node, or none",
        },
    )
)
