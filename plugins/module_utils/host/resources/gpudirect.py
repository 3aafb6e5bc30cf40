# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""How NICs access the memory of NVIDIA's GPUs: with dma-buf, or with the module nvidia-peermem."""

from __future__ import annotations

import re

from ..access.system import HostError
from ..engine.change import NODE, Change, Refusal, State
from ..engine.node import Node
from ..engine.resource import Resource

LOAD = "/etc/modules-load.d/lanewise-gpudirect.conf"
_TEXT = "# Written by the Ansible collection lanewise.dra, which owns this file.\nnvidia-peermem\n"
#: NCCL checks for any of these; old drivers used the first two names.
_PEERMEM = (
    "/sys/kernel/mm/memory_peers/nv_mem/version",
    "/sys/kernel/mm/memory_peers/nv_mem_nc/version",
    "/sys/module/nvidia_peermem/version",
)
_DRIVER = "/proc/driver/nvidia/version"
_RELEASE = re.compile(r"^(\d+)\.(\d+)")


class Gpudirect(Resource):
    """`gpudirect` of the node: `dma_buf` checks that driver and kernel support dma-buf; `peermem` loads nvidia-peermem.

    dma-buf needs no setting, only the driver's open kernel modules and Linux 5.12.
    """

    name = "gpudirect"
    boot = False

    def wanted(self, node: Node) -> State:
        mode = node.general.get("gpudirect")
        if mode == "dma_buf":
            return {NODE: {"dma_buf": True}}
        if mode == "peermem":
            return {NODE: {"nvidia-peermem": True, "nvidia-peermem at boot": _TEXT}}
        if mode is None:
            return {}
        raise HostError("prepare GPUDirect", f"{mode!r} is not known", "use dma_buf or peermem")

    def read(self, node: Node, wanted: State) -> State:
        values = {
            "dma_buf": not self._dma_buf_problem(),
            "nvidia-peermem": any(self.system.exists(path) for path in _PEERMEM),
            "nvidia-peermem at boot": self.system.content(LOAD),
        }
        return {NODE: {setting: values[setting] for setting in wanted.get(NODE, {})}}

    def _dma_buf_problem(self) -> str:
        """Why this node does not support dma-buf; empty if it does."""
        version = self.system.content(_DRIVER)
        if version is None:
            return "NVIDIA's driver is not loaded"
        if "Open Kernel Module" not in version:
            return "the driver has proprietary kernel modules, which do not support dma-buf"
        release = _RELEASE.match(self.system.text("/proc/sys/kernel/osrelease") or "")
        if release and (int(release.group(1)), int(release.group(2))) < (5, 12):
            return f"RDMA supports dma-buf since Linux 5.12, but this node runs {release.group()}"
        return ""

    def check(self, node: Node, change: Change) -> Refusal | None:
        if change.setting == "dma_buf" and change.after:
            fix = "install the driver with its open kernel modules, or choose gpudirect: peermem"
            return Refusal(NODE, change.setting, self._dma_buf_problem(), fix)
        if change.setting == "nvidia-peermem" and change.after and self.system.content(_DRIVER) is None:
            return Refusal(NODE, change.setting, "NVIDIA's driver is not loaded", "install it first")
        return None

    def apply(self, node: Node, change: Change) -> None:
        step = f"set {change.setting}"
        if change.setting == "nvidia-peermem at boot":
            self.system.install(LOAD, change.after, step)
        elif change.setting == "nvidia-peermem":
            argv = ["modprobe", "nvidia-peermem"] if change.after else ["modprobe", "--remove", "nvidia-peermem"]
            fix = (
                "the module needs an RDMA stack with peer memory (DOCA-OFED), loaded before it; with the kernel's own "
                "stack choose gpudirect: dma_buf"
            )
            self.system.command(argv, step, fix)
