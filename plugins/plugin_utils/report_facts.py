# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# Note: this file is private to the collection.

"""Converts the facts that a node sent into a view for the site report.

Facts are untrusted: a field may be missing, null, of another type, megabytes long or full of control characters.
:func:`read_facts` turns any input into a complete :class:`Topology`, so that later code needs no checks.
"""

from __future__ import annotations

import contextlib
import functools
import re
import types
import typing as t
import unicodedata
from collections import Counter
from dataclasses import MISSING, dataclass, field, fields, is_dataclass

from ..module_utils.topology.affinity import whole_switches
from ..module_utils.topology.model import Link, Nic, PciFunction, Topology
from .answers import MAX_NUMBER

#: Affinity levels from near to far.
LEVELS = ("SELF", "PIX", "PXB", "PHB", "NODE", "SYS", "UNKNOWN")

#: Severities of findings, the most severe first.
SEVERITIES = ("error", "warning", "info")

_MAX_TEXT = 400
_MAX_DEPTH = 12
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6, 128.0: 7}
_NATURAL = re.compile(r"(\d+)")


def clean(value: str, limit: int = _MAX_TEXT) -> str:
    """A text of at most `limit` characters that cannot control a browser, a terminal or the direction of text.

    Control, format (such as bidirectional overrides), surrogate and unassigned characters become U+FFFD. Each
    white-space character becomes a plain space.
    """
    if len(value) > limit:
        value = value[: limit - 1] + "…"
    return value if value.isprintable() else _printable(value).strip()


def clean_lines(text: str) -> str:
    """A text of several lines without the characters that `clean` replaces; tabs and spaces remain."""
    return "\n".join("\t".join(map(_printable, line.split("\t"))) for line in text.split("\n"))


def _printable(value: str) -> str:
    if value.isprintable():
        return value
    return "".join(
        c if c.isprintable() else " " if c.isspace() or unicodedata.category(c) == "Zs" else "\ufffd" for c in value
    )


def natural(value: str) -> list[tuple[int, int, str]]:
    """A sort key that puts gpu2 before gpu10."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in _NATURAL.split(value) if part]


class _Unusable(Exception):
    """The value is not of the expected type."""


def _to_str(value: object) -> str:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and -MAX_NUMBER < value < MAX_NUMBER:
        return str(value)
    raise _Unusable


def _to_int(value: object) -> int:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and -MAX_NUMBER < value < MAX_NUMBER:
        if isinstance(value, int) or value.is_integer():
            return int(value)
    raise _Unusable


def _to_float(value: object) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e15:
        return float(value)
    raise _Unusable


def _to_bool(value: object) -> bool:
    if isinstance(value, bool):
        return bool(value)
    raise _Unusable


def _to_plain(value: object) -> object:
    return value


_Convert = t.Callable[[object], object]
_SCALARS: dict[object, _Convert] = {
    str: _to_str,
    int: _to_int,
    float: _to_float,
    bool: _to_bool,
    t.Any: _to_plain,
}


def _to_list(item: _Convert) -> _Convert:
    def convert(value: object) -> list[object]:
        if not isinstance(value, list):
            raise _Unusable
        result = []
        for entry in value:
            try:
                result.append(item(entry))
            except _Unusable:
                continue
        return result

    return convert


def _to_dict(item: _Convert) -> _Convert:
    def convert(value: object) -> dict[str, object]:
        if not isinstance(value, dict):
            raise _Unusable
        result = {}
        for key, entry in value.items():
            try:
                result[clean(str(key))] = item(entry)
            except _Unusable:
                continue
        return result

    return convert


def _to_typed_dict(items: dict[str, _Convert]) -> _Convert:
    """All keys are optional; unknown keys are dropped."""

    def convert(value: object) -> dict[str, object]:
        if not isinstance(value, dict):
            raise _Unusable
        result = {}
        for key in items.keys() & value.keys():
            with contextlib.suppress(_Unusable):
                result[key] = items[key](value[key])
        return result

    return convert


@functools.cache
def _converter(hint: object) -> _Convert:
    """The function that converts a raw value to the type of a field of the model."""
    if hint in _SCALARS:
        return _SCALARS[hint]
    if is_dataclass(hint):
        return _to_dataclass(t.cast("type", hint))
    if t.is_typeddict(hint):
        return _to_typed_dict({name: _converter(field_hint) for name, field_hint in t.get_type_hints(hint).items()})
    origin, arguments = t.get_origin(hint), t.get_args(hint)
    if origin in (types.UnionType, t.Union):
        return _converter(next(argument for argument in arguments if argument is not types.NoneType))
    if origin is list:
        return _to_list(_converter(arguments[0]))
    if origin is dict:
        return _to_dict(_converter(arguments[1]))
    raise TypeError(f"no converter for {hint!r}")


def _to_dataclass(kind: type) -> _Convert:
    """A required field that is missing or unusable gets an empty text or -1."""
    hints = t.get_type_hints(kind)
    converters = []
    for model_field in fields(kind):
        required = model_field.default is MISSING and model_field.default_factory is MISSING
        converters.append(
            (
                model_field.name,
                _converter(hints[model_field.name]),
                {str: "", int: -1}.get(hints[model_field.name]) if required else None,
            )
        )

    def convert(value: object) -> object:
        if not isinstance(value, dict):
            raise _Unusable
        values = {}
        for name, convert_field, default in converters:
            raw = value.get(name)
            if raw is not None:
                try:
                    values[name] = convert_field(raw)
                    continue
                except _Unusable:
                    pass
            if default is not None:
                values[name] = default
        return kind(**values)

    return convert


def read_facts(facts: t.Mapping[str, object]) -> Topology:
    """The topology that `facts`, the dictionary form of a Topology, describes.

    A value of the wrong type counts as missing; a list entry of the wrong type is dropped. Text is cleaned and
    shortened by :func:`clean`. Never raises for any JSON value inside `facts`.
    """
    topology = t.cast(Topology, _converter(Topology)(dict(facts)))
    for address, function in topology.functions.items():
        function.address = function.address or address
        del function.bridges[_MAX_DEPTH:]
    for finding in topology.findings:
        finding.severity = finding.severity if finding.severity in SEVERITIES else "info"
    return topology


def link_text(link: Link | None) -> str:
    """A link, such as `Gen5 x16`, without the parts that are unknown."""
    if link is None:
        return ""
    parts = []
    if link.speed_gts:
        generation = _GENERATIONS.get(link.speed_gts)
        parts.append(f"Gen{generation}" if generation else f"{link.speed_gts:g} GT/s")
    if link.width:
        parts.append(f"x{link.width}")
    return " ".join(parts)


@dataclass
class Device:
    """A device in the report: a GPU, an accelerator, a NIC that is not a VF of a known PF, an NVMe drive."""

    address: str
    kind: str  # gpu, accelerator, nic, nvme, data_direct
    label: str  # unique on the node
    short: str = ""  # the label without an address
    model: str = ""
    driver: str = ""
    numa: int | None = None
    root: str | None = None
    bridges: list[str] = field(default_factory=list)
    link: str = ""
    degraded: str = ""  # what the link lost, as text
    slow: str = ""  # a speed below the maximum that may be power saving, as text
    rail: int | None = None
    vfs: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def switch(self) -> str | None:
        """The bridge that the device shares with its neighbours: the upstream port of the nearest switch."""
        if whole_switches(self.root):
            return self.bridges[-1] if self.bridges else None
        return self.bridges[-2] if len(self.bridges) >= 3 else None


def _link_loss(function: PciFunction, parent: PciFunction | None, kind: str) -> tuple[str, str]:
    """What a link lost, and a lower speed that may be power saving, as texts.

    The maximum is that of the weaker end, so a card in an older slot is not degraded.
    """
    link = function.link
    if link is None:
        return "", ""
    ends = [link] if parent is None or parent.link is None else [link, parent.link]
    widths = [end.max_width for end in ends if end.max_width]
    speeds = [end.max_speed_gts for end in ends if end.max_speed_gts]
    lost, slow = [], ""
    if link.width and widths and link.width < min(widths):
        lost.append(f"x{link.width} of x{min(widths)}")
    if link.speed_gts and speeds and link.speed_gts < min(speeds):
        speed = f"{link_text(Link(speed_gts=link.speed_gts))} of {link_text(Link(speed_gts=min(speeds)))}"
        # idle GPUs and NVMe drives reduce the speed of their links
        if kind in ("gpu", "accelerator", "nvme"):
            slow = speed
        else:
            lost.append(speed)
    return ", ".join(lost), slow


class View:
    """A node's topology with the lookups that the drawing, the tables and the comparison share."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.functions = topology.functions
        self.vfs: dict[str, list[Nic]] = {}
        for nic in topology.nics:
            if nic.physfn and nic.physfn in self.functions:
                self.vfs.setdefault(nic.physfn, []).append(nic)
        self.rdma = {device.name: device for device in topology.rdma_devices if device.name}
        self.interfaces = {interface.name: interface for interface in topology.interfaces if interface.name}
        self.devices: list[Device] = list(self._devices())
        self._make_labels_unique()
        self.by_address = {device.address: device for device in self.devices}

    def _make_labels_unique(self) -> None:
        """Add the address to labels that several devices share. The domain is omitted if all devices have the same."""
        shared = {label for label, number in Counter(device.label for device in self.devices).items() if number > 1}
        one_domain = len({device.address.partition(":")[0] for device in self.devices}) == 1
        for device in self.devices:
            device.short = device.label
            if device.label in shared:
                device.label += " " + (device.address.partition(":")[2] if one_domain else device.address)

    @property
    def without_devices(self) -> bool:
        """Whether the facts have no PCI functions and no devices, so that no findings were possible."""
        return not self.functions and not self.devices

    @property
    def no_driver(self) -> str:
        """The text for a device without a driver. Topology files may not state drivers at all."""
        return "no driver" if self.topology.source.kind == "sysfs" else "driver not stated"

    def device(self, address: str, kind: str, label: str, **known: t.Any) -> Device:
        """A device with the `known` values, and the others from its PCI function."""
        function = self.functions.get(address) or PciFunction(address=address)
        degraded, slow = "", ""
        if not self.topology.system.virtual:  # links of emulated bridges are not real
            parent = self.functions.get(function.bridges[-1]) if function.bridges else None
            degraded, slow = _link_loss(function, parent, kind)
        known["model"] = known.get("model") or function.name or _ids(function)
        known["driver"] = known.get("driver") or function.driver or ""
        if known.get("numa") is None:
            known["numa"] = function.numa_node
        return Device(
            address=address,
            kind=kind,
            label=label,
            root=function.root_complex,
            bridges=function.bridges,
            link=link_text(function.link),
            degraded=degraded,
            slow=slow,
            **known,
        )

    def _devices(self) -> t.Iterator[Device]:
        seen: set[str] = set()
        for gpu in self.topology.gpus:
            if gpu.address and gpu.address not in seen:
                seen.add(gpu.address)
                noun = "GPU" if gpu.kind != "accelerator" else "Accelerator"
                yield self.device(
                    gpu.address,
                    "accelerator" if gpu.kind == "accelerator" else "gpu",
                    f"{noun} {gpu.index if gpu.index >= 0 else '?'}",
                    model=gpu.model,
                    driver=gpu.driver,
                    numa=gpu.numa_node,
                    rail=gpu.rail,
                )
        for nic in self.topology.nics:
            if not nic.address or nic.address in seen or (nic.physfn and nic.physfn in self.functions):
                continue
            seen.add(nic.address)
            yield self._nic(nic)
        for drive in self.topology.nvme:
            if drive.address and drive.address not in seen:
                seen.add(drive.address)
                yield self.device(
                    drive.address,
                    "nvme",
                    " ".join(["NVMe", *drive.controllers[:1]]),
                    model=drive.model,
                    driver=drive.driver,
                    numa=drive.numa_node,
                )
        for address, function in self.functions.items():
            if function.kind == "data_direct" and address not in seen:
                yield self.device(address, "data_direct", "Data direct")

    def _nic(self, nic: Nic) -> Device:
        function = self.functions.get(nic.address)
        sriov = function.sriov if function else None
        count = max(len(self.vfs.get(nic.address, [])), (sriov.num_vfs or 0) if sriov else 0)
        notes = []
        if nic.speed_mbps and nic.speed_mbps > 0:
            notes.append(f"{nic.speed_mbps / 1000:g}G")
        if nic.link_layer == "infiniband":
            notes.append("IB")
        if nic.up is False:
            notes.append("down")
        if nic.default_route:
            notes.append("uplink")
        if nic.elsewhere:
            notes.append("in a container")
        return self.device(
            nic.address,
            "nic",
            " ".join(["VF" if nic.physfn else "NIC", *(nic.rdma_devices or nic.interfaces)[:1]]),
            model=nic.model,
            driver=nic.driver,
            numa=nic.numa_node,
            rail=nic.rail,
            vfs=count,
            notes=notes,
        )

    def count(self, *kinds: str) -> int:
        return sum(device.kind in kinds for device in self.devices)

    def label(self, address: str) -> str:
        """The label of a device, or the address if it is not a device of the report."""
        device = self.by_address.get(address)
        return device.label if device else address

    @property
    def gpu_model(self) -> str:
        """The model of most of the node's GPUs, or an empty string."""
        models = Counter(device.model for device in self.devices if device.kind in ("gpu", "accelerator"))
        return min(models, key=lambda model: (-models[model], model)) if models else ""

    @property
    def group_levels(self) -> str:
        """The number of GPU-NIC groups by affinity level, such as `8 × PIX`."""
        counts = Counter(
            group.level if group.level in LEVELS else "UNKNOWN"
            for group in self.topology.groups
            if group.gpus and group.nics
        )
        return ", ".join(f"{counts[level]} × {level}" for level in LEVELS if counts[level])


def _ids(function: PciFunction) -> str:
    return f"{function.vendor_id}:{function.device_id}" if function.vendor_id and function.device_id else ""
