# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""A topology file for NCCL (NCCL_TOPO_FILE), from the facts of a node.

The file contains NUMA nodes, PCIe switches, and GPUs and NICs by PCI address. It contains no `gpu` and no `net`
elements, because NCCL adds them below the function of an address: NCCL numbers devices in each process, and would use
the speed, port and GUID of a network from the file instead of reading them from the device. Unknown values are left out
too, because NCCL then reads sysfs. NCCL removes devices that a process does not have.

Source: NCCL src/graph/xml.cc (xmlGetNode, ncclTopoGetXmlFromSys, ncclTopoFillNet, ncclTopoTrimXml) and topo.cc.
"""

from __future__ import annotations

import re
import typing as t

from . import cpuset
from .affinity import whole_switches
from .pci import slot_of, sort_key

if t.TYPE_CHECKING:
    from .facts import FunctionFacts, NodeFacts, NumaNodeFacts, SystemFacts

__all__ = ["nccl_file"]

#: NCCL refuses a file with more than 256 elements (NCCL_TOPO_XML_MAX_NODES), and adds elements for each GPU and NIC.
MAX_ELEMENTS = 160
#: NCCL's names of architectures (kvDictCpuArch).
_ARCHITECTURES = {"x86_64": "x86_64", "aarch64": "arm64", "ppc64le": "ppc64", "ppc64": "ppc64"}
_BRIDGE = "060400"
#: The length of a vendor in CPUID. The kernel removes blanks at both ends, so a shorter text is not what NCCL compares.
_VENDOR_LENGTH = 12
#: NCCL refuses a file with a longer value (MAX_STR_LEN in xml.h).
_PLAIN = re.compile(r"[0-9A-Za-z:.,/_ -]{1,253}")

#: Switches by their addresses, from the outermost.
Chain = tuple[str, ...]


def nccl_file(facts: NodeFacts) -> str:
    """The content of the file for a node, from topology facts (see :func:`model.as_dict`). Raises ValueError for a node
    without GPU and NIC, or with more devices and switches than a file may contain."""
    if not _devices(facts):
        raise ValueError("the topology has no GPU and no NIC, so there is nothing to write to a file for NCCL")
    tree = _Tree(facts)
    lines = ['<system version="1">', *tree.lines(), "</system>"]
    elements = sum(not line.lstrip().startswith("</") for line in lines)
    if elements > MAX_ELEMENTS:
        raise ValueError(f"the topology has {elements} elements, but a file for NCCL may have at most {MAX_ELEMENTS}")
    return "".join(f"{line}\n" for line in lines)


class _Tree:
    """The functions in a file, by the switches above them."""

    def __init__(self, facts: NodeFacts) -> None:
        self._facts = facts
        self._functions: t.Mapping[str, FunctionFacts] = facts["functions"]
        self._labels: dict[str, str] = {}  #: made-up address -> the site's label of a switch
        devices = _devices(facts)
        chains = self._with_stated_switches(self._chains(devices))
        self._below: dict[Chain, list[str]] = {}
        self._switches: dict[Chain, set[str]] = {}
        for address, chain in chains.items():
            self._below.setdefault(chain, []).append(address)
            for depth, switch in enumerate(chain):
                self._switches.setdefault(chain[:depth], set()).add(switch)
        self._nodes: dict[str, int | None] = {}  #: outermost element -> NUMA node
        for address in devices:
            outermost = (*chains[address], address)[0]
            if self._nodes.get(outermost) is None:
                self._nodes[outermost] = self._functions[address]["numa_node"]

    def _chains(self, devices: t.Sequence[str]) -> dict[str, Chain]:
        """The switches above each device, as NCCL finds them: every second port of the path, from the device up. A
        bridge that this leaves out is a switch, too, if it has several children."""
        paths = {address: _path(self._functions[address]) for address in devices}
        marked: set[str] = set()
        children: dict[str, set[str]] = {}
        for address, path in paths.items():
            whole = whole_switches(self._functions[address]["root_complex"])
            marked.update(path if whole else path[-2::-2])
            for bridge, child in zip(path[:1], (*path[1:2], slot_of(address))):
                children.setdefault(bridge, set()).add(child)
        marked |= {bridge for bridge, below in children.items() if len(below) > 1}
        return {address: tuple(bridge for bridge in path if bridge in marked) for address, path in paths.items()}

    def _with_stated_switches(self, chains: dict[str, Chain]) -> dict[str, Chain]:
        """Put devices that share a switch, according to the site, below a switch at a made-up address."""
        groups: dict[str, list[str]] = {}
        for address in chains:
            label = self._functions[address].get("switch_label")
            if label:
                groups.setdefault(label, []).append(address)
        for number, (label, members) in enumerate(sorted(groups.items())):
            made_up = f"ffff:ff:{number >> 3 & 0x1F:02x}.{number & 7}"
            self._labels[made_up] = label
            above = _common([chains[address] for address in members])
            for address in members:
                chains[address] = (*above, made_up)
        return chains

    def lines(self) -> t.Iterator[str]:
        """The elements of NUMA nodes that have devices, with their contents."""
        nodes: dict[int | None, NumaNodeFacts] = {node["id"]: node for node in self._facts["numa_nodes"]}
        used = set(self._nodes.values())
        numbers = sorted(number for number in used if number is not None)
        processor = _processor(self._facts["system"])
        for number in [*numbers, *([None] if None in used else [])]:
            cpus = nodes[number].get("cpus") if number in nodes else None
            mask = _mask(cpuset.from_list(cpus) or 0) if cpus is not None else None
            values = {"numaid": -1 if number is None else number, "affinity": mask, **processor}
            yield from _element("cpu", values, list(self._inside((), 4, number)), 2)

    def _inside(self, chain: Chain, indent: int, number: int | None) -> t.Iterator[str]:
        """The lines of the elements below a switch; at the outermost level, those of one NUMA node."""
        members = [*self._switches.get(chain, ()), *self._below.get(chain, ())]
        for address in sorted(members, key=sort_key):
            if chain or self._nodes[address] == number:
                below = list(self._inside((*chain, address), indent + 2, number))
                yield from _element("pci", self._values(address, chain), below, indent)

    def _values(self, address: str, chain: Chain) -> dict[str, t.Any]:
        """The attributes of a function. A made-up switch gets those of the fastest link below it, because NCCL cannot
        read them."""
        function = self._functions.get(address) or {}
        if address in self._labels:
            inside = (*chain, address)
            links = [self._link(self._functions[child]) for child in self._below[inside]]
            known = [link for link in links if None not in link]
            speed, width = max(known, key=lambda link: (link[0] or 0) * (link[1] or 0), default=(None, None))
        else:
            speed, width = self._link(function) if function else (None, None)
        values = {"busid": address, "class": _hex(_BRIDGE if not function else function["class_code"])}
        for name in ("vendor", "device", "subsystem_vendor", "subsystem_device"):
            values[name] = _hex(t.cast("str | None", function.get(f"{name}_id")))
        values["link_speed"] = None if speed is None else f"{float(speed)} GT/s PCIe"
        values["link_width"] = None if width is None else str(width)
        return values

    def _link(self, function: FunctionFacts) -> tuple[float | None, int | None]:
        """The highest speed and width that both ends of a function's link support, in GT/s and lanes. If one end does
        not report a value, the value of the other end is used. Without facts about the other end, both are unknown."""
        above = _path(function)[-1:]
        if whole_switches(function["root_complex"]):  # from a file for NCCL, whose values cover both ends
            above = ()
        elif above and above[0] not in self._functions:
            return None, None
        links = [end.get("link") or {} for end in (function, *(self._functions[address] for address in above))]
        speeds = [speed for link in links if (speed := link.get("max_speed_gts"))]
        widths = [width for link in links if (width := link.get("max_width"))]
        return min(speeds, default=None), min(widths, default=None)


def _devices(facts: NodeFacts) -> list[str]:
    """The addresses of GPUs, NICs and the functions that carry the GPU traffic of NICs. VFs are left out: NCCL uses the
    location of the PF for them."""
    functions = facts["functions"]
    addresses = {device["address"] for device in (*facts["gpus"], *facts["nics"])}
    addresses |= {partner for nic in facts["nics"] if (partner := nic.get("data_direct"))}
    return sorted(
        (address for address in addresses if address in functions and not functions[address].get("physfn")),
        key=sort_key,
    )


def _path(function: FunctionFacts) -> Chain:
    """The bridges above a function in its PCI domain: NCCL stops at another host bridge (Intel VMD)."""
    bridges: list[str] = function["bridges"]
    if whole_switches(function["root_complex"]):
        return tuple(bridges)
    domain = function["address"].partition(":")[0]
    return tuple(bridge for bridge in bridges if bridge.partition(":")[0] == domain)


def _common(chains: t.Sequence[Chain]) -> Chain:
    """The common start of all chains."""
    shared = 0
    while all(len(chain) > shared and chain[shared] == chains[0][shared] for chain in chains):
        shared += 1
    return chains[0][:shared]


def _processor(system: SystemFacts) -> dict[str, t.Any]:
    """The attributes of a processor. NCCL reads them only for the NUMA nodes of its GPUs and NICs. But it puts a
    network without a PCI function below the first node of the file, and fails if that node has no vendor (x86-64).

    With the vendor, NCCL needs family and model, except for AMD. It counts families above 14 differently from the
    kernel, so these are left out.
    """
    arch = _ARCHITECTURES.get(system["architecture"] or "")
    vendor = system.get("cpu_vendor") or ""
    family, number = system.get("cpu_family"), system.get("cpu_model_number")
    if arch != "x86_64" or len(vendor) != _VENDOR_LENGTH:
        return {"arch": arch}
    if family is not None and number is not None and family < 15:
        return {"arch": arch, "vendor": vendor, "familyid": family, "modelid": number}
    return {"arch": arch, "vendor": vendor} if vendor == "AuthenticAMD" else {"arch": arch}


def _mask(bits: int) -> str:
    """A CPU set as the kernel writes it: words of 32 bits, the highest first."""
    words = [bits >> shift & 0xFFFFFFFF for shift in range(0, max(bits.bit_length(), 1), 32)]
    return ",".join(f"{word:08x}" for word in reversed(words))


def _hex(digits: str | None) -> str | None:
    return f"0x{digits}" if digits else None


def _element(tag: str, values: t.Mapping[str, t.Any], inside: list[str], indent: int) -> list[str]:
    """The lines of an element, without values that NCCL could not read. NCCL's parser supports neither escapes nor line
    breaks between attributes, which must be separated by exactly one blank."""
    texts = [
        f'{name}="{value}"' for name, value in values.items() if _PLAIN.fullmatch(str(value)) and value is not None
    ]
    head = f"{' ' * indent}<{' '.join([tag, *texts])}"
    return [f"{head}>", *inside, f"{' ' * indent}</{tag}>"] if inside else [f"{head}/>"]
