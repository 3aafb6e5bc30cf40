# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""From a machine description to the list of its PCI functions, with buses and names assigned as Linux would."""

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
    """One PCI function, placed. `parent` is the bridge above it; `path` lies below sys/."""

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
        """PCI Express port type as configspace.PORT_TYPE names it; None for conventional PCI."""
        kind = self.spec.get("port")
        return kind if kind or not self.spec.get("link") else "endpoint"


@dataclass
class Plan:
    """All data that the writer needs. `roots` maps a host bridge's path below sys/ to its NUMA node."""

    machine: dict[str, t.Any]
    functions: list[Function] = field(default_factory=list)
    roots: dict[str, int] = field(default_factory=dict)

    def by_address(self) -> dict[str, Function]:
        return {f.address: f for f in self.functions}


def names() -> list[str]:
    """Names of the machines that come with the package."""
    return sorted(p.stem for p in DESCRIPTIONS.glob("*.yml"))


def load(source: dict | str | Path) -> dict[str, t.Any]:
    """Read a description: a dictionary, a file, or the name of a machine of this package.

    `like` names another machine to start from: mappings are merged, anything else replaces.
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
    done: dict[str, dict[str, t.Any]] = {}

    def resolve(name: str) -> dict[str, t.Any]:
        if name not in done:
            own = dict(raw[name])
            base = own.pop("like", None)
            done[name] = _merge(resolve(base), own) if base else own
        return done[name]

    return {name: resolve(name) for name in raw}


def plan(description: dict[str, t.Any]) -> Plan:
    """Place every function. Raises DescriptionError for unknown parts, overrides without a function, full buses."""
    result = Plan(description)
    builder = _Placer(result, {**parts(), **description.get("parts", {})})
    home = "/".join(filter(None, ["devices", description.get("under")]))
    for at, root in description.get("roots", {}).items():
        builder.root(at, root or {}, home, None)
    unused = set(description.get("override", {})) - builder.overridden
    if unused:
        raise DescriptionError(f"override without a function: {', '.join(sorted(unused))}")
    seen: set[str] = set()
    for function in result.functions:
        if function.address in seen:
            raise DescriptionError(f"two functions at {function.address}")
        seen.add(function.address)
    result.functions.sort(key=lambda f: (f.domain, f.bus, f.device, f.function))
    _isolate(result)
    return result


def digest(*words: t.Any) -> int:
    """A stable 128 bit number for made-up identities (MAC addresses, GUIDs, serial numbers)."""
    return int.from_bytes(hashlib.blake2b("|".join(map(str, words)).encode(), digest_size=16).digest(), "big")


def link(value: str) -> tuple[float, int]:
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
    def __init__(self, result: Plan, catalogue: dict[str, dict[str, t.Any]]) -> None:
        self.plan = result
        self.catalogue = catalogue
        self.templates = result.machine.get("templates", {})
        self.overrides = result.machine.get("override", {})
        self.overridden: set[str] = set()
        self.next_bus: dict[int, int] = {}  # domain -> next free bus below the root that is being placed

    def root(self, at: str, spec: dict[str, t.Any], parent_path: str, numa: int | None) -> None:
        domain, bus = (int(x, 16) for x in at.split(":"))
        if "under" in spec:
            parent_path = f"{parent_path}/{spec['under']}"
        path = f"{parent_path}/pci{domain:04x}:{bus:02x}"
        numa = spec.get("numa", -1 if numa is None else numa)
        self.plan.roots[path] = numa
        self.next_bus[domain] = bus + 1
        self.children(spec, _Bus(domain, bus, path, path.rsplit("/", 1)[1], None, numa))

    def children(self, spec: dict[str, t.Any], above: _Bus) -> None:
        cards: dict[int, list[Function]] = {}
        pending: list[tuple[Function, dict[str, t.Any]]] = []
        for key, value in self.expand(spec):
            for device, number, part in self.positions(key):
                function = self.function(above, device, number, part, value or {})
                cards.setdefault(device, []).append(function)
                pending.append((function, value or {}))
        for functions in cards.values():
            for function in functions:
                function.multifunction = len(functions) > 1
        for function, value in pending:
            self.plan.functions.append(function)
            if function.is_bridge:
                self.bridge(function, value)
            for key, inner in value.items():
                nested = _ROOT.match(key)
                if nested:
                    self.root(nested.group(1), inner or {}, f"{function.path}", function.numa)
        for functions in cards.values():
            for index, function in enumerate(functions):
                self.virtual_functions(function, index, len(functions))

    def positions(self, key: str) -> t.Iterator[tuple[int, int, str]]:
        """Device, function and part of each function that a key such as `00-03.0 part` stands for."""
        match = _DEVICE.match(key)
        if not match:
            return
        first, last, fn_first, fn_last, part = match.groups()
        if part not in self.catalogue:
            raise DescriptionError(f"unknown part {part!r} at {key!r}")
        for device in range(int(first, 16), int(last or first, 16) + 1):
            for number in range(int(fn_first), int(fn_last or fn_first) + 1):
                yield device, number, part

    def function(self, above: _Bus, device: int, number: int, part: str, value: dict[str, t.Any]) -> Function:
        own = {k: v for k, v in value.items() if not _DEVICE.match(k) and not _ROOT.match(k)}
        merged = _merge(self.catalogue[part], own)
        address = f"{above.domain:04x}:{above.bus:02x}:{device:02x}.{number}"
        if address in self.overrides:
            self.overridden.add(address)
            merged = _merge(merged, self.overrides[address])
        merged["part"] = part
        where = merged.get("numa", above.numa)
        path = f"{above.path}/{address}"
        function = Function(above.domain, above.bus, device, number, merged, path, above.root, above.parent, where)
        if above.parent:
            above.parent.children.append(function)
        return function

    def bridge(self, function: Function, value: dict[str, t.Any]) -> None:
        domain = function.domain
        secondary = function.spec.get("bus", self.next_bus[domain])
        function.secondary = secondary
        self.next_bus[domain] = secondary + 1
        self.children(value, _Bus(domain, secondary, function.path, function.root, function, function.numa))
        function.subordinate = self.next_bus[domain] - 1
        if function.subordinate > 255:
            raise DescriptionError(f"no bus numbers left below {function.address}")

    def virtual_functions(self, pf: Function, index: int, count: int) -> None:
        capability = pf.spec.get("sriov")
        if not capability:
            return
        options = pf.spec.get("vfs") or 0
        if not isinstance(options, dict):
            options = {"count": options}
        total, num = capability["total"], options.get("count", 0)
        if num > total:
            raise DescriptionError(f"{pf.address}: {num} VFs of {total}")
        # The first VF follows the last PF of the card, and each PF's VFs those of the previous PF (as mlx5 and ice do).
        offset = capability.get("offset", count + index * total - index)
        stride = capability.get("stride", 1)
        pf.sriov = {"total": total, "num": num, "offset": offset, "stride": stride, "vf": int(capability["vf"], 16)}
        rid = pf.bus << 8 | pf.device << 3 | pf.function
        self.next_bus[pf.domain] = max(self.next_bus[pf.domain], (rid + offset + stride * (total - 1) >> 8) + 1)
        base = {k: v for k, v in pf.spec.items() if k not in ("sriov", "vfs", "vpd", "slot", "representors")}
        base["id"] = f"{pf.spec['id'].split(':')[0]}:{capability['vf']}"
        for number in range(num):
            where = rid + offset + stride * number
            spec = _merge(base, {k: v for k, v in options.items() if k != "count"})
            spec = _merge(spec, (options.get("each") or {}).get(number, {}))
            vf = Function(
                pf.domain,
                where >> 8,
                where >> 3 & 0x1F,
                where & 7,
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

    def expand(self, spec: dict[str, t.Any]) -> list[tuple[str, t.Any]]:
        used = spec.get("use", [])
        entries: list[tuple[str, t.Any]] = []
        for name in [used] if isinstance(used, str) else used:
            if name not in self.templates:
                raise DescriptionError(f"unknown template {name!r}")
            entries += self.templates[name].items()
        return entries + [(k, v) for k, v in spec.items() if isinstance(k, str)]


def _isolate(result: Plan) -> None:
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
            function.group = numbers.setdefault(_leader(function, slots).path, len(numbers))


def _slot(function: Function) -> tuple:
    return function.path.rsplit("/", 1)[0], function.bus, function.device


def _isolates(bridge: Function) -> bool:
    if bridge.port == "upstream":
        return True
    return bridge.acs_enabled is not None and {"SV", "RR", "CR", "UF"} <= set(bridge.acs_enabled.split())


def _leader(function: Function, slots: dict[tuple, Function]) -> Function:
    """The function whose IOMMU group `function` is in."""
    above, ancestors = function.parent, []
    while above:
        ancestors.append(above)
        above = above.parent
    if not all(map(_isolates, ancestors)):
        return _leader(function.parent, slots)
    if function.pf is None and function.multifunction and not function.spec.get("functions_isolated"):
        if not (function.is_bridge and function.acs_enabled is not None):
            return slots[_slot(function)]
    return function


def _merge(base: dict[str, t.Any], over: dict[str, t.Any]) -> dict[str, t.Any]:
    result = copy.deepcopy(base)
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = _merge(result[key], value)
        else:
            result[key] = copy.deepcopy(value)
    return result


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
