# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read machine descriptions. Assign addresses and IOMMU groups to their PCI functions, as Linux would."""

from __future__ import annotations

import copy
import hashlib
import re
import typing as t
from dataclasses import dataclass, field
from pathlib import Path

import yaml

HERE = Path(__file__).parent
DESCRIPTIONS = HERE / "descriptions"

_DEVICE = re.compile(r"^([0-9a-f]{2})(?:-([0-9a-f]{2}))?\.([0-7])(?:-([0-7]))? (\S+)$")
_ROOT = re.compile(r"^root ([0-9a-f]{4,}:[0-9a-f]{2})$")


class DescriptionError(ValueError):
    """The description contains something that cannot be built."""


@dataclass
class Function:
    """One PCI function with its address. `parent` is the bridge above it; `path` is relative to sys/."""

    domain: int
    bus: int
    device: int
    function: int
    spec: dict[str, t.Any]
    path: str
    root: str
    parent: Function | None = None
    numa: int = -1
    multifunction: bool = False
    children: list[Function] = field(default_factory=list)
    secondary: int | None = None
    subordinate: int | None = None
    pf: Function | None = None
    vf_number: int | None = None
    vfs: list[Function] = field(default_factory=list)
    sriov: dict[str, int] | None = None
    acs_enabled: str | None = None
    group: int | None = None

    @property
    def address(self) -> str:
        return f"{self.domain:04x}:{self.bus:02x}:{self.device:02x}.{self.function}"

    @property
    def is_bridge(self) -> bool:
        return self.spec["class"].startswith("0604")

    @property
    def port(self) -> str | None:
        """PCI Express port type, a key of configspace.PORT_TYPE; None for conventional PCI."""
        kind = self.spec.get("port")
        return kind if kind or not self.spec.get("link") else "endpoint"


@dataclass
class Plan:
    """All data that the builder needs. `roots` maps a host bridge's path below sys/ to its NUMA node."""

    machine: dict[str, t.Any]
    functions: list[Function] = field(default_factory=list)
    roots: dict[str, int] = field(default_factory=dict)

    def by_address(self) -> dict[str, Function]:
        return {f.address: f for f in self.functions}


def names() -> list[str]:
    """Names of the machines of this package."""
    return sorted(p.stem for p in DESCRIPTIONS.glob("*.yml"))


def load(source: dict | str | Path) -> dict[str, t.Any]:
    """Read a description: a dictionary, a file, or the name of a machine of this package.

    `like` names another machine, whose description is the base: mappings are merged, all other values are replaced.
    Raises DescriptionError for an unknown name.
    """
    if isinstance(source, dict):
        description = copy.deepcopy(source)
    else:
        path = Path(source)
        if not path.is_file():
            path = DESCRIPTIONS / f"{source}.yml"
        if not path.is_file():
            raise DescriptionError(f"no machine {source!r}; known: {', '.join(names())}")
        description = yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER)
    base = description.pop("like", None)
    return _merge(load(base), description) if base else description


def parts() -> dict[str, dict[str, t.Any]]:
    """The catalogue of cards, with `like` resolved."""
    raw = yaml.load((HERE / "parts.yml").read_text(encoding="utf-8"), Loader=_LOADER)
    resolved: dict[str, dict[str, t.Any]] = {}

    def resolve(name: str) -> dict[str, t.Any]:
        if name not in resolved:
            part = dict(raw[name])
            base = part.pop("like", None)
            resolved[name] = _merge(resolve(base), part) if base else part
        return resolved[name]

    return {name: resolve(name) for name in raw}


def plan(description: dict[str, t.Any]) -> Plan:
    """Assign an address to every function.

    Raises DescriptionError for unknown parts, overrides without a function, and more buses than a domain has.
    """
    result = Plan(description)
    placer = _Placer(result, {**parts(), **description.get("parts", {})})
    parent_path = "/".join(filter(None, ["devices", description.get("under")]))
    for bus, root in description.get("roots", {}).items():
        placer.place_root(bus, root or {}, parent_path, None)
    unused = set(description.get("override", {})) - placer.overridden
    if unused:
        raise DescriptionError(f"override without a function: {', '.join(sorted(unused))}")
    addresses: set[str] = set()
    for function in result.functions:
        if function.address in addresses:
            raise DescriptionError(f"two functions at {function.address}")
        addresses.add(function.address)
    result.functions.sort(key=lambda f: (f.domain, f.bus, f.device, f.function))
    _set_acs_and_iommu_groups(result)
    return result


def digest(*words: t.Any) -> int:
    """A 128-bit number for made-up MAC addresses, GUIDs and serial numbers, the same for the same words."""
    return int.from_bytes(hashlib.blake2b("|".join(map(str, words)).encode(), digest_size=16).digest(), "big")


def parse_link(value: str) -> tuple[float, int]:
    """Parse "32.0 x16" into (GT/s, lanes)."""
    match = re.fullmatch(r"([0-9.]+) x(\d+)", value)
    if not match:
        raise DescriptionError(f"not a link: {value!r}; write it as 32.0 x16")
    return float(match.group(1)), int(match.group(2))


class _Bus(t.NamedTuple):
    """A bus, and the bridge above it; `root` is the name of its root complex."""

    domain: int
    bus: int
    path: str
    root: str
    parent: Function | None
    numa: int | None


class _Placer:
    """Creates the functions of a plan, each with its address, and the buses below bridges."""

    def __init__(self, result: Plan, catalogue: dict[str, dict[str, t.Any]]) -> None:
        self.plan = result
        self.catalogue = catalogue
        self.templates = result.machine.get("templates", {})
        self.overrides = result.machine.get("override", {})
        self.overridden: set[str] = set()
        self.next_bus: dict[int, int] = {}  # domain -> next free bus below the root that is being placed

    def place_root(self, domain_and_bus: str, spec: dict[str, t.Any], parent_path: str, numa: int | None) -> None:
        domain, bus = (int(number, 16) for number in domain_and_bus.split(":"))
        if "under" in spec:
            parent_path = f"{parent_path}/{spec['under']}"
        path = f"{parent_path}/pci{domain:04x}:{bus:02x}"
        numa = spec.get("numa", -1 if numa is None else numa)
        self.plan.roots[path] = numa
        self.next_bus[domain] = bus + 1
        self.place_children(spec, _Bus(domain, bus, path, path.rsplit("/", 1)[1], None, numa))

    def place_children(self, spec: dict[str, t.Any], bus: _Bus) -> None:
        cards: dict[int, list[Function]] = {}
        pending: list[tuple[Function, dict[str, t.Any]]] = []
        for key, value in self.expand_templates(spec):
            for device, number, part in self.positions(key):
                function = self.create_function(bus, device, number, part, value or {})
                cards.setdefault(device, []).append(function)
                pending.append((function, value or {}))
        for functions in cards.values():
            for function in functions:
                function.multifunction = len(functions) > 1
        for function, value in pending:
            self.plan.functions.append(function)
            if function.is_bridge:
                self.place_below_bridge(function, value)
            for key, root in value.items():
                match = _ROOT.match(key)
                if match:
                    self.place_root(match.group(1), root or {}, f"{function.path}", function.numa)
        for functions in cards.values():
            for index, function in enumerate(functions):
                self.place_virtual_functions(function, index, len(functions))

    def positions(self, key: str) -> t.Iterator[tuple[int, int, str]]:
        """Device, function and part of each function that a key such as `00-03.0 part` stands for."""
        match = _DEVICE.match(key)
        if not match:
            return
        first_device, last_device, first_function, last_function, part = match.groups()
        if part not in self.catalogue:
            raise DescriptionError(f"unknown part {part!r} at {key!r}")
        for device in range(int(first_device, 16), int(last_device or first_device, 16) + 1):
            for number in range(int(first_function), int(last_function or first_function) + 1):
                yield device, number, part

    def create_function(self, bus: _Bus, device: int, number: int, part: str, value: dict[str, t.Any]) -> Function:
        options = {k: v for k, v in value.items() if not _DEVICE.match(k) and not _ROOT.match(k)}
        spec = _merge(self.catalogue[part], options)
        address = f"{bus.domain:04x}:{bus.bus:02x}:{device:02x}.{number}"
        if address in self.overrides:
            self.overridden.add(address)
            spec = _merge(spec, self.overrides[address])
        spec["part"] = part
        numa = spec.get("numa", bus.numa)
        path = f"{bus.path}/{address}"
        function = Function(bus.domain, bus.bus, device, number, spec, path, bus.root, bus.parent, numa)
        if bus.parent:
            bus.parent.children.append(function)
        return function

    def place_below_bridge(self, function: Function, value: dict[str, t.Any]) -> None:
        domain = function.domain
        secondary = function.spec.get("bus", self.next_bus[domain])
        function.secondary = secondary
        self.next_bus[domain] = secondary + 1
        self.place_children(value, _Bus(domain, secondary, function.path, function.root, function, function.numa))
        function.subordinate = self.next_bus[domain] - 1
        if function.subordinate > 255:
            raise DescriptionError(f"no bus numbers left below {function.address}")

    def place_virtual_functions(self, pf: Function, index: int, count: int) -> None:
        capability = pf.spec.get("sriov")
        if not capability:
            return
        options = pf.spec.get("vfs") or 0
        if not isinstance(options, dict):
            options = {"count": options}
        total, num = capability["total"], options.get("count", 0)
        if num > total:
            raise DescriptionError(f"{pf.address}: {num} VFs of {total}")
        # The VFs of the first PF follow the last PF of the card, and each PF's VFs follow those of the PF before it, as
        # with mlx5 and ice.
        offset = capability.get("offset", count + index * total - index)
        stride = capability.get("stride", 1)
        pf.sriov = {"total": total, "num": num, "offset": offset, "stride": stride, "vf": int(capability["vf"], 16)}
        pf_routing_id = pf.bus << 8 | pf.device << 3 | pf.function
        last_bus = pf_routing_id + offset + stride * (total - 1) >> 8
        self.next_bus[pf.domain] = max(self.next_bus[pf.domain], last_bus + 1)
        base = {k: v for k, v in pf.spec.items() if k not in ("sriov", "vfs", "vpd", "slot", "representors")}
        base["id"] = f"{pf.spec['id'].split(':')[0]}:{capability['vf']}"
        for number in range(num):
            routing_id = pf_routing_id + offset + stride * number
            spec = _merge(base, {k: v for k, v in options.items() if k != "count"})
            spec = _merge(spec, (options.get("each") or {}).get(number, {}))
            vf = Function(
                pf.domain,
                routing_id >> 8,
                routing_id >> 3 & 0x1F,
                routing_id & 7,
                spec,
                "",
                pf.root,
                pf.parent,
                pf.numa,
                pf=pf,
                vf_number=number,
            )
            vf.path = f"{pf.path.rsplit('/', 1)[0]}/{vf.address}"
            pf.vfs.append(vf)
            self.plan.functions.append(vf)

    def expand_templates(self, spec: dict[str, t.Any]) -> list[tuple[str, t.Any]]:
        """The entries of the templates that `spec` uses, then its own entries."""
        used = spec.get("use", [])
        entries: list[tuple[str, t.Any]] = []
        for name in [used] if isinstance(used, str) else used:
            if name not in self.templates:
                raise DescriptionError(f"unknown template {name!r}")
            entries += self.templates[name].items()
        return entries + [(k, v) for k, v in spec.items() if isinstance(k, str)]


def _set_acs_and_iommu_groups(result: Plan) -> None:
    """Set ACS and IOMMU groups by the rules of drivers/pci/pci.c and drivers/iommu/iommu.c (pci_device_group)."""
    system = result.machine.get("system", {})
    iommu = system.get("iommu")
    default = system.get("acs", "SV RR CR UF" if iommu else "")
    for function in result.functions:
        if function.is_bridge and function.port in ("root", "downstream") and function.spec.get("acs_capable"):
            function.acs_enabled = function.spec.get("acs", default)
    if not iommu:
        return
    slots: dict[tuple, Function] = {}
    for function in result.functions:
        slots.setdefault(_slot(function), function)
    numbers: dict[str, int] = {}
    for function in result.functions:
        if function.domain <= 0xFFFF:  # devices behind VMD share the VMD function's DMA identity, without a group
            function.group = numbers.setdefault(_group_owner(function, slots).path, len(numbers))


def _slot(function: Function) -> tuple:
    """A key that is the same for all functions of a card."""
    return function.path.rsplit("/", 1)[0], function.bus, function.device


def _isolates(bridge: Function) -> bool:
    """Whether devices below the bridge can have IOMMU groups of their own."""
    if bridge.port == "upstream":
        return True
    return bridge.acs_enabled is not None and {"SV", "RR", "CR", "UF"} <= set(bridge.acs_enabled.split())


def _group_owner(function: Function, slots: dict[tuple, Function]) -> Function:
    """The function whose IOMMU group `function` is in: itself, the first function of the card, or a bridge above."""
    bridge, bridges = function.parent, []
    while bridge:
        bridges.append(bridge)
        bridge = bridge.parent
    if not all(map(_isolates, bridges)):
        return _group_owner(function.parent, slots)
    if function.pf is None and function.multifunction and not function.spec.get("functions_isolated"):
        if not (function.is_bridge and function.acs_enabled is not None):
            return slots[_slot(function)]
    return function


def _merge(base: dict[str, t.Any], changes: dict[str, t.Any]) -> dict[str, t.Any]:
    result = copy.deepcopy(base)
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = _merge(result[key], value)
        else:
            result[key] = copy.deepcopy(value)
    return result


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
