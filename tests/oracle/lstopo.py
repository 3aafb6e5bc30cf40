# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run hwloc's lstopo on a node and read its XML (hwloc 2 document type)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import typing as t
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path

#: `LANEWISE_LSTOPO` names another binary, to try another version of hwloc.
BINARY = os.environ.get("LANEWISE_LSTOPO") or shutil.which("lstopo-no-graphics") or shutil.which("lstopo")
OS_DEVICES = {"0": "block", "2": "network", "3": "openfabrics"}
#: Types of objects that have no CPU set.
_IO = ("Bridge", "PCIDev", "OSDev", "Misc")
_PCI_TYPE = re.compile(
    r"^(?P<class_code>\w{4}) \[(?P<vendor_id>\w{4}):(?P<device_id>\w{4})\] "
    r"\[(?P<subsystem_vendor_id>\w{4}):(?P<subsystem_device_id>\w{4})\] (?P<revision>\w{2})"
)


class TreeNotLoaded(Exception):
    """hwloc cannot load this node, so there is nothing to compare with."""


@dataclass
class Function:
    """One PCI function as hwloc sees it. CPU sets are integers; `speed` is GB/s, 0 if hwloc does not know it."""

    address: str
    ids: dict[str, str]
    speed: float
    is_bridge: bool
    bridges: list[str]
    host_bridge: int
    cpus: int  # CPU set of the nearest ancestor that is not an I/O object
    nodes: int  # NUMA nodes of that ancestor


@dataclass
class OsDevice:
    kind: str
    name: str
    address: str | None
    subtype: str | None
    info: dict[str, str]


@dataclass
class Machine:
    cpus: int = 0  # including the CPUs that are offline
    online: int = 0
    cpu_sets: set[int] = field(default_factory=set)  # of all objects except I/O objects
    functions: dict[str, Function] = field(default_factory=dict)
    devices: list[OsDevice] = field(default_factory=list)
    nodes: dict[int, tuple[int, int]] = field(default_factory=dict)  # number -> CPU set, bytes
    packages: list[tuple[int | None, int]] = field(default_factory=list)  # number, CPU set
    distances: dict[int, dict[int, int]] = field(default_factory=dict)


def _bitmap(text: str | None) -> int:
    """Parse hwloc's 0x00000001,,0x000000ff (hwloc/bitmap.h): 32-bit words from the highest down, empty for zero."""
    bits = 0
    for word in (text or "").split(","):
        if word == "0xf...f":
            raise ValueError("an infinite bitmap")
        bits = bits << 32 | int(word or "0", 16)
    return bits


def run_lstopo(root: Path) -> Machine:
    """Run lstopo on the node below `root`, and parse its output.

    Raises TreeNotLoaded for a tree without CPU topology, which hwloc does not load, and RuntimeError if lstopo fails.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HWLOC_")}
    environment.update(
        HWLOC_COMPONENTS="linux,stop",
        HWLOC_DUMPED_HWDATA_DIR="/var/run/hwloc",
        HWLOC_KEEP_NVIDIA_GPU_NUMA_NODES="1",
        LC_ALL="C",
    )
    if str(root) != "/":
        environment["HWLOC_FSROOT"] = str(root)
    command = [str(BINARY), "--of", "xml", "--whole-io", "--disallowed"]
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip()
        raise TreeNotLoaded(reason) if "failed to find sysfs cpu topology" in reason else RuntimeError(reason)
    machine = Machine()
    document = ET.fromstring(done.stdout)
    top = document.find("object")
    assert top is not None
    machine.cpus, machine.online = _bitmap(top.get("complete_cpuset")), _bitmap(top.get("cpuset"))
    _walk(machine, top, top, [], None)
    for matrix in document.iter("distances2"):
        if matrix.get("name") == "NUMALatency":
            numbers = [int(word) for element in matrix.iter("indexes") for word in (element.text or "").split()]
            values = [int(word) for element in matrix.iter("u64values") for word in (element.text or "").split()]
            for row, number in enumerate(numbers):
                distances = values[row * len(numbers) : (row + 1) * len(numbers)]
                machine.distances[number] = dict(zip(numbers, distances))
    return machine


def _walk(
    machine: Machine, element: ET.Element, ancestor: ET.Element, above: list[str], host_bridge: int | None
) -> None:
    """Add an object and all objects below it.

    `ancestor` is the nearest object above that is not an I/O object, `above` has the PCI functions above.
    """
    kind = element.get("type")
    if kind not in _IO:
        ancestor = element
        machine.cpu_sets.add(_bitmap(element.get("complete_cpuset")))
    address = element.get("pci_busid")
    if kind == "Bridge" and address is None:
        host_bridge = int(element.get("gp_index") or 0)
    if address is not None:
        match = _PCI_TYPE.match(element.get("pci_type") or "")
        assert match, element.attrib
        machine.functions[address] = Function(
            address=address,
            ids=match.groupdict(),
            speed=float(element.get("pci_link_speed") or 0),
            is_bridge=kind == "Bridge",
            bridges=list(above),
            host_bridge=host_bridge or 0,
            cpus=_bitmap(ancestor.get("complete_cpuset")),
            nodes=_bitmap(ancestor.get("complete_nodeset")),
        )
        above = [*above, address]
    if kind == "NUMANode":
        number = int(element.get("os_index") or 0)
        machine.nodes[number] = (_bitmap(element.get("complete_cpuset")), int(element.get("local_memory") or 0))
    if kind == "Package":
        index = element.get("os_index")
        machine.packages.append((None if index is None else int(index), _bitmap(element.get("cpuset"))))
    if kind == "OSDev" and element.get("osdev_type") in OS_DEVICES:
        info = {str(pair.get("name")): str(pair.get("value")) for pair in element.findall("info")}
        machine.devices.append(
            OsDevice(
                kind=OS_DEVICES[element.get("osdev_type") or ""],
                name=str(element.get("name")),
                address=above[-1] if above else None,
                subtype=element.get("subtype"),
                info=info,
            )
        )
    for child in element.findall("object"):
        _walk(machine, child, ancestor, above, host_bridge)


def port_info(info: dict[str, str], port: int) -> dict[str, t.Any]:
    """State, LID and GIDs of one port of an RDMA device."""
    gids = {}
    for name, value in info.items():
        match = re.match(rf"^Port{port}GID(\d+)$", name)
        if match:
            gids[int(match.group(1))] = value
    return {"state": info.get(f"Port{port}State"), "lid": info.get(f"Port{port}LID"), "gids": gids}
