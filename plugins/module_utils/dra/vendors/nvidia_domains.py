# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""NVIDIA's compute domains (multi-node NVLink), as kubernetes-sigs/dra-driver-nvidia-gpu
(cmd/compute-domain-kubelet-plugin) publishes them.

The driver's controller creates claims for these devices from ComputeDomain objects, so a site's claims never request
them. A node's channels depend on the IMEX settings of its kernel module, which a probe does not read.
"""

from __future__ import annotations

from .knowledge import DriverKnowledge
from .offer import Vendor

VENDOR = Vendor(
    DriverKnowledge(
        name="compute-domain.nvidia.com",
        title="NVIDIA compute domain DRA driver",
        kinds={},
        vendors=("10de",),
        kubernetes="1.32",
        version_series=("0.1.0", "25.3.0", "0.4.0"),
        oldest="25.3.0",
        newest="0.5.0",
        release_lines=("25.3", "25.8", "25.12", "0.4", "0.5"),
        source="Go module sigs.k8s.io/dra-driver-nvidia-gpu, v0.5.0 and v0.4.1",
        hints={"version": "0.4.0 and later are newer than 25.12.0"},
    )
)
