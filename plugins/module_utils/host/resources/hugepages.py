# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Huge pages of each NUMA node (Documentation/admin-guide/mm/hugetlbpage.rst)."""

from __future__ import annotations

import json
import re

from ..access.system import HostError
from ..engine.change import NODE, Change, Plan, Refusal, State
from ..engine.node import Node
from ..engine.resource import Resource
from .kubelet import Kubelet

_NODES = "/sys/devices/system/node"
_SIZE = re.compile(r"^(\d+)([KMG])$", re.ASCII)
_KILOBYTES = {"K": 1, "M": 1024, "G": 1024 * 1024}
_SETTING = re.compile(r"^hugepages (\w+) on NUMA node (\d+)$", re.ASCII)


def kilobytes(size: str) -> int:
    """The kilobytes of a page size such as `2M` or `1G`. Raises HostError."""
    match = _SIZE.match(size)
    if not match:
        raise HostError("set huge pages", f"{size!r} is not a page size", "use 2M or 1G")
    return int(match.group(1)) * _KILOBYTES[match.group(2)]


class Hugepages(Resource):
    """`hugepages` of the node: a list of entries with `size`, `count` for each NUMA node, and `numa_nodes`.

    Without `numa_nodes`, an entry is for all NUMA nodes with processors. NUMA nodes of GPU memory are excluded, as huge
    pages would reduce it.
    """

    name = "hugepages"
    recorded_in = ("/sys/devices/system/node/node0/hugepages",)

    def wanted(self, node: Node) -> State:
        counts: dict[str, object] = {}
        for entry in node.general.get("hugepages") or []:
            kilobytes(entry["size"])
            numa_nodes = entry.get("numa_nodes")
            for number in self._numa_nodes_with_processors() if numa_nodes is None else numa_nodes:
                counts[f"hugepages {entry['size']} on NUMA node {number}"] = entry["count"]
        return {NODE: counts} if counts else {}

    def _numa_nodes_with_processors(self) -> list[int]:
        names = [name for name in self.system.names(_NODES) if re.match(r"^node\d+$", name, re.ASCII)]
        return sorted(int(name[4:]) for name in names if self.system.text(f"{_NODES}/{name}/cpulist"))

    @staticmethod
    def _parts(setting: str) -> tuple[int, str]:
        """The size of a page in kilobytes, and the number of the NUMA node. Raises HostError."""
        match = _SETTING.match(setting)
        if not match:
            raise HostError("set huge pages", f"{setting!r} does not name a size and a NUMA node")
        return kilobytes(match.group(1)), match.group(2)

    def _folder(self, setting: str) -> str:
        """The folder of a page size and NUMA node in sysfs."""
        size, number = self._parts(setting)
        return f"{_NODES}/node{number}/hugepages/hugepages-{size}kB"

    def read(self, node: Node, wanted: State) -> State:
        numbers: dict[str, object] = {
            setting: self._persistent(self._folder(setting)) for setting in wanted.get(NODE, {})
        }
        return {NODE: numbers}

    def _persistent(self, folder: str) -> int | None:
        """The number of pages without those that the kernel has allocated beyond it (nr_overcommit_hugepages)."""
        number = self.system.integer(f"{folder}/nr_hugepages")
        return None if number is None else number - (self.system.integer(f"{folder}/surplus_hugepages") or 0)

    def plan(self, node: Node, wanted: State | None = None) -> Plan:
        """As for any resource, but recorded sizes and NUMA nodes that no longer exist are left out."""
        if wanted is not None:
            current = self.read(node, wanted).get(NODE, {})
            kept = {name: value for name, value in wanted.get(NODE, {}).items() if current.get(name) is not None}
            wanted = {NODE: kept} if kept else {}
        return super().plan(node, wanted)

    def check(self, node: Node, change: Change) -> Refusal | None:
        folder = self._folder(change.setting)
        if change.before is None:
            parent = folder.rpartition("/")[0]
            sizes = ", ".join(_size_of(name) for name in self.system.names(parent))
            if not sizes:
                return Refusal(NODE, change.setting, "the node has no such NUMA node with huge pages")
            fix = f"available sizes: {sizes}"
            return Refusal(NODE, change.setting, "this processor or kernel has no pages of that size", fix)
        if change.after < change.before:
            used = change.before - (self.system.integer(f"{folder}/free_hugepages") or 0)
            if change.after < used:
                fix = "drain the node first, or request at least as many"
                return Refusal(NODE, change.setting, f"{used} of {change.before} are in use", fix, drain=True)
        state = self._conflicting_state(change)
        if state:
            fix = f"drain the node, remove {state}, run again, and restart kubelet before you uncordon the node"
            message = "kubelet's Static memory manager has stored another number, and kubelet would not start"
            return Refusal(NODE, change.setting, message, fix)
        return None

    def _conflicting_state(self, change: Change) -> str:
        """The state file of kubelet's Static memory manager if it contains another number of pages; empty otherwise.

        At boot there is no conflict, as kubelet's state was written with the number of the last run.
        """
        path = f"{Kubelet(self.system).root()}/memory_manager_state"
        size, number = self._parts(change.setting)
        resource = f"hugepages-{_size_of(f'hugepages-{size}kB')}i"
        try:
            state = json.loads(self.system.content(path) or "{}")
            if state.get("policyName") != "Static":
                return ""
            pages = state["machineState"].get(number, {}).get("memoryMap", {}).get(resource, {})
            return "" if pages.get("total", 0) == change.after * size * 1024 else path
        except (ValueError, KeyError, AttributeError):
            return ""  # kubelet cannot read it either, and would not start in any case

    def apply(self, node: Node, change: Change) -> None:
        path = f"{self._folder(change.setting)}/nr_hugepages"
        step = f"set {change.setting} to {change.after}"
        self.system.write(path, str(change.after), step)
        allocated = self._persistent(self._folder(change.setting))
        if allocated == change.after:
            return
        if allocated is not None and allocated > change.after:
            raise HostError(step, f"{allocated} pages are in use or reserved", "drain the node first")
        size = change.setting.split()[1]
        fix = "reboot, so that memory is not fragmented, or stop a program on that NUMA node"
        if kilobytes(size) >= kilobytes("1G"):
            fix = f"allocate them at boot: kernel_args: [hugepagesz={size}, hugepages=NUMBER FOR ALL NUMA NODES]"
        raise HostError(step, f"the kernel could allocate only {allocated}", fix)


def _size_of(name: str) -> str:
    """The page size in the name of a folder: `2M` for `hugepages-2048kB`."""
    number = int(name[len("hugepages-") : -len("kB")])
    for unit in ("G", "M"):
        if number % _KILOBYTES[unit] == 0:
            return f"{number // _KILOBYTES[unit]}{unit}"
    return f"{number}K"
