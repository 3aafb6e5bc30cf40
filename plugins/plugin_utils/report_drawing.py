# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# Note: this file is private to the collection.

"""Draws a node's PCIe tree as SVG: NUMA nodes contain root complexes, which contain switches, which contain devices.

Every box measures its children first and then places them, so the drawing depends only on the facts. Colours come
from the page's style sheet through class names; a text or a shape also shows what a colour shows.
"""

from __future__ import annotations

import functools
import math
import unicodedata
from collections import Counter
from dataclasses import dataclass, field
from html import escape

from ..module_utils.topology.affinity import whole_switches
from .report_facts import Device, View, natural

WIDTH = 1180  # the maximum width of a drawing in pixels, unless a single box is wider
_CHIP_W, _CHIP_H = 122, 56  # the size of a device's box in pixels
_PAD, _GAP, _LINE, _STUB = 8, 8, 17, 24
_BOLD, _LARGE = 1.16, 12 / 11  # how much wider bold text is, and the larger first line of a chip
_MAX_CHIPS = 6  # more identical devices than this under one port are drawn as one chip

_KIND_NAMES = {
    "gpu": "GPU",
    "accelerator": "accelerator",
    "nic": "NIC",
    "nvme": "NVMe drive",
    "data_direct": "data-direct function",
}


@dataclass
class Box:
    """A rectangle of the drawing. A `bus` box connects its children to a line, with the link of each beside it."""

    style: str
    head: list[str]
    children: list[Box] = field(default_factory=list)
    bus: bool = False
    link: str = ""
    degraded: bool = False
    hint: str = ""
    order: tuple[object, ...] = ()
    rows: list[list[Box]] = field(default_factory=list)
    x: float = 0
    y: float = 0
    w: float = 0
    h: float = 0

    @property
    def head_height(self) -> float:
        return len(self.head) * _LINE + 6 if self.head else 0

    def measure(self, limit: float) -> None:
        """Set the size of this box and of all boxes in it, wrapping rows at `limit` pixels where that is possible."""
        if not self.children and self.style.startswith("chip"):
            self.w, self.h = _CHIP_W, _CHIP_H
            return
        inner = limit - 2 * _PAD
        for child in self.children:
            child.measure(inner)
        self.rows = _wrap(self.children, inner)
        stub = _STUB if self.bus else 0
        content_w, y = 0.0, self.head_height + (0 if self.bus else _PAD if not self.head else 2)
        for row in self.rows:
            height = max(child.h for child in row)
            for child in row:
                if child.rows:
                    child.h = height
            content_w = max(content_w, sum(child.w for child in row) + _GAP * (len(row) - 1))
            y += stub + height + _GAP
        titles = max((len_px(line) * _BOLD + 4 for line in self.head), default=0)
        self.w = max(content_w, min(titles, inner), 60) + 2 * _PAD
        self.h = y if self.rows else y + 2

    def place(self, x: float, y: float) -> None:
        """Set the position of this box and of all boxes in it."""
        self.x, self.y = x, y
        top = y + self.head_height + (0 if self.bus else _PAD if not self.head else 2)
        for row in self.rows:
            left = x + _PAD
            top += _STUB if self.bus else 0
            for child in row:
                child.place(left, top)
                left += child.w + _GAP
            top += max(child.h for child in row) + _GAP


def len_px(text: str) -> float:
    """An upper estimate of the width of 11 px text in pixels, for any system font."""
    return sum(map(_char_px, text))


@functools.cache
def _char_px(char: str) -> float:
    if unicodedata.east_asian_width(char) in "WF":
        return 12.0
    return 8.2 if char in "MWmw@%…" else 7.5 if char.isupper() else 3.8 if char in " .,:;il|'" else 6.7


def _clip(text: str, width: float) -> str:
    """A text that fits in a width in pixels."""
    if len_px(text) <= width:
        return text
    while text and len_px(text) > width - _char_px("…"):
        text = text[:-1]
    return text.rstrip() + "…"


def _wrap(children: list[Box], limit: float) -> list[list[Box]]:
    """Split boxes into rows of at most `limit` pixels, as evenly filled as possible (2 + 2 rather than 3 + 1)."""

    def fill(max_boxes: int) -> list[list[Box]]:
        rows: list[list[Box]] = []
        used = 0.0
        for child in children:
            if rows and used + _GAP + child.w <= limit and len(rows[-1]) < max_boxes:
                rows[-1].append(child)
                used += _GAP + child.w
            else:
                rows.append([child])
                used = child.w
        return rows

    rows = fill(len(children))
    even = fill(math.ceil(len(children) / len(rows))) if rows else rows
    return even if len(even) == len(rows) else rows


def _chip(device: Device) -> Box:
    last_line = [f"rail {device.rail}"] if device.rail is not None else []
    last_line += device.notes
    if device.vfs:
        last_line.append(f"{device.vfs} VF" + ("s" if device.vfs > 1 else ""))
    hint = [device.label, device.address, device.model, device.link, device.driver]
    hint += [f"link degraded: {device.degraded}"] if device.degraded else []
    hint += [f"link speed {device.slow}, which may be power saving"] if device.slow else []
    return Box(
        style=f"chip {device.kind}",
        head=[device.short, device.address, " · ".join(last_line) or device.model],
        link=device.degraded or device.link,
        degraded=bool(device.degraded),
        hint="\n".join(line for line in hint if line),
        order=_order(device),
    )


def _order(device: Device) -> tuple[int, list[tuple[int, int, str]]]:
    rank = {"gpu": 0, "accelerator": 0, "nic": 1, "data_direct": 2, "nvme": 3}
    return rank.get(device.kind, 4), natural(device.address)


def _chips(devices: list[Device]) -> list[Box]:
    """One chip for each device, but only one for many identical devices."""
    alike = Counter(
        (device.kind, device.model, device.link, device.degraded, device.numa)
        for device in devices
        if device.kind in ("nic", "nvme")
    )
    boxes: list[Box] = []
    drawn: set[tuple[str, str, str, str, int | None]] = set()
    for device in sorted(devices, key=_order):
        key = (device.kind, device.model, device.link, device.degraded, device.numa)
        if alike[key] <= _MAX_CHIPS:
            boxes.append(_chip(device))
        elif key not in drawn:
            drawn.add(key)
            noun = device.short.split(" ", 1)[0]
            box = _chip(device)
            box.style += " stack"
            box.head = [f"{alike[key]} × {noun}", f"from {device.address}", device.model]
            boxes.append(box)
    return boxes


def _subtree(view: View, devices: list[Device], depth: int) -> list[Box]:
    """The boxes below the port at `depth` of the paths: its devices, and a box for each bridge further down.

    The bridges of a path are a root port, then an upstream and a downstream port for each switch. An upstream port and
    the downstream ports behind it are one switch, so only every second bridge gets a box. Where the PCI domain
    changes, a path has passed a host bridge within the tree (Intel VMD), and begins with a root port again.
    """
    boxes = _chips([device for device in devices if len(device.bridges) <= depth + 1])
    below: dict[str, list[Device]] = {}
    for device in devices:
        if len(device.bridges) > depth + 1:
            below.setdefault(device.bridges[depth + 1], []).append(device)
    nested = [address for address, behind in below.items() if _domain(address) != _domain(behind[0].bridges[depth])]
    if nested:
        members = [device for address in nested for device in below.pop(address)]
        children = [box for ports in _by_port(members, depth + 1) for box in _subtree(view, ports, depth + 1)]
        boxes.append(
            Box(
                style="switch",
                head=[f"Host bridge {members[0].bridges[depth]}"],
                bus=True,
                children=sorted(children, key=lambda box: box.order),
                order=(0, natural(nested[0])),
            )
        )
    return boxes + [_switch(view, address, _subtree(view, members, depth + 2)) for address, members in below.items()]


def _switch(view: View, address: str, children: list[Box]) -> Box:
    upstream = view.device(address, "bridge", "Switch")
    return Box(
        style="switch",
        head=[f"Switch {address}"],
        bus=True,
        children=sorted(children, key=lambda box: box.order),
        hint=upstream.model,
        link=upstream.degraded or upstream.link,
        degraded=bool(upstream.degraded),
        order=(0, natural(address)),
    )


def _whole_switches(view: View, devices: list[Device], depth: int) -> list[Box]:
    """The boxes below the switch at `depth`, for paths in which each step is a whole switch, as in NCCL's files."""
    below: dict[str, list[Device]] = {}
    for device in devices:
        if len(device.bridges) > depth:
            below.setdefault(device.bridges[depth], []).append(device)
    boxes = _chips([device for device in devices if len(device.bridges) <= depth])
    return boxes + [
        _switch(view, address, _whole_switches(view, behind, depth + 1)) for address, behind in below.items()
    ]


def _domain(address: str) -> str:
    return address.partition(":")[0]


def _by_port(devices: list[Device], depth: int) -> list[list[Device]]:
    ports: dict[str, list[Device]] = {}
    for device in devices:
        ports.setdefault(device.bridges[depth] if len(device.bridges) > depth else "", []).append(device)
    return list(ports.values())


def _root(view: View, name: str | None, devices: list[Device]) -> Box:
    """The box of a root complex, or of devices whose root complex is unknown."""
    if whole_switches(name):
        children = _whole_switches(view, devices, 0)
    else:
        children = [box for members in _by_port(devices, 0) for box in _subtree(view, members, 0)]
    return Box(
        style="root" if name else "root unknown",
        head=[name or "root complex not stated"],
        bus=True,
        children=sorted(children, key=lambda box: box.order),
        order=(natural(name or "~"),),
    )


def _layout(view: View) -> list[Box]:
    """The boxes of the NUMA nodes, with their content."""
    by_numa: dict[int | None, dict[str | None, list[Device]]] = {}
    for device in view.devices:
        by_numa.setdefault(device.numa, {}).setdefault(device.root, []).append(device)
    facts = {node.id: node for node in view.topology.numa_nodes}
    packages = {number: package.id for package in view.topology.packages for number in package.numa_nodes}
    boxes: list[Box] = []
    empty: list[int] = []
    for number in sorted({number for number in by_numa if number is not None} | set(facts)):
        node = facts.get(number)
        package = node.package if node and node.package is not None else packages.get(number)
        roots = sorted((_root(view, *root) for root in by_numa.get(number, {}).items()), key=lambda box: box.order)
        parts = [f"NUMA node {number}"]
        if package is not None:
            parts.insert(0, f"Socket {package}")
        if node and node.cpus:
            parts.append(f"CPUs {node.cpus}")
        elif node and node.cpus == "":
            parts.append("no CPUs")
        if node and node.memory_bytes:
            parts.append(f"{node.memory_bytes / 2**30:,.0f} GiB")
        if not roots:
            empty.append(number)
            continue
        title = " · ".join(parts)
        boxes.append(Box(style="numa", head=[title], children=roots, hint=title))
    if None in by_numa:
        roots = sorted((_root(view, *root) for root in by_numa[None].items()), key=lambda box: box.order)
        boxes.append(
            Box(
                style="numa unknown",
                head=["Locality unknown: the machine reports no NUMA node"],
                children=roots,
            )
        )
    if empty:
        noun = "node" if len(empty) == 1 else "nodes"
        boxes.append(Box(style="numa empty", head=[f"NUMA {noun} {_ranges(empty)}: no GPUs, NICs or NVMe drives"]))
    return boxes


def _ranges(numbers: list[int]) -> str:
    """Ascending numbers, such as `0, 2-5`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _describe(view: View) -> str:
    """The content of the drawing as text, for screen readers."""
    counts = Counter(device.kind for device in view.devices)
    parts = [
        f"{counts[kind]} {name}{'s' if counts[kind] != 1 else ''}" for kind, name in _KIND_NAMES.items() if counts[kind]
    ]
    roots = {device.root for device in view.devices if device.root}
    text = f"{', '.join(parts) or 'No devices'} under {len(roots)} root complexes."
    unknown = sum(device.numa is None for device in view.devices)
    if unknown:
        text += f" The NUMA node of {unknown} devices is unknown."
    degraded = [f"{device.label} ({device.degraded})" for device in view.devices if device.degraded]
    if degraded:
        text += " Degraded links: " + ", ".join(degraded[:8]) + "."
    return text + " The tables of the node's page have the same facts."


def draw(view: View, name: str, prefix: str = "tree") -> str:
    """The tree of a node as one `svg` element; empty for a node without devices.

    `name` is the drawing's accessible title. `prefix` makes the element's identifiers unique on the page.
    """
    boxes = _layout(view)
    if not view.devices:
        return ""
    for box in boxes:
        box.measure(WIDTH)
    rows = _wrap([box for box in boxes if box.children], WIDTH)
    rows += [[box] for box in boxes if not box.children]
    width = max(sum(box.w for box in row) + _GAP * (len(row) - 1) for row in rows)
    y = 1.0
    for row in rows:
        if len(row) == 1:
            row[0].w = width
        height = max(box.h for box in row)
        x = 1.0
        for box in row:
            box.h = height
            box.place(x, y)
            x += box.w + _GAP
        y += height + _GAP
    out = [
        f'<svg class="tree" role="img" width="{width + 2:.0f}" height="{y - _GAP + 1:.0f}" '
        f'viewBox="0 0 {width + 2:.0f} {y - _GAP + 1:.0f}" aria-labelledby="{prefix}-t {prefix}-d">',
        f'<title id="{prefix}-t">{escape(name)}</title><desc id="{prefix}-d">{escape(_describe(view))}</desc>',
    ]
    for box in boxes:
        _emit(box, out)
    out.append("</svg>")
    return "\n".join(out)


def _emit(box: Box, out: list[str]) -> None:
    chip = box.style.startswith("chip")
    out.append(f'<g class="{box.style}{" degraded" if box.degraded else ""}">')
    if box.hint:
        out.append(f"<title>{escape(box.hint)}</title>")
    if "stack" in box.style:
        out.append(f'<rect x="{box.x + 4:.0f}" y="{box.y + 4:.0f}" width="{box.w:.0f}" height="{box.h:.0f}" rx="5"/>')
    out.append(f'<rect x="{box.x:.0f}" y="{box.y:.0f}" width="{box.w:.0f}" height="{box.h:.0f}" rx="5"/>')
    if chip:
        out.append(f'<path class="edge" d="M{box.x + 3:.0f} {box.y + 7:.0f}v{box.h - 14:.0f}"/>')
    for number, line in enumerate(box.head):
        x, y = box.x + (12 if chip else _PAD), box.y + 17 + number * (16 if chip else _LINE)
        kind = ("b", "m", "s")[min(number, 2)] if chip else ("h" if number == 0 else "s")
        factor = (_BOLD * _LARGE if chip else _BOLD) if number == 0 else 1  # how much wider than plain text
        text = _clip(line, (box.w - (18 if chip else 2 * _PAD - 4)) / factor)
        out.append(f'<text class="{kind}" x="{x:.0f}" y="{y:.0f}">{escape(text)}</text>')
    if box.bus:
        _emit_bus(box, out)
    for child in box.children:
        _emit(child, out)
    out.append("</g>")


def _emit_bus(box: Box, out: list[str]) -> None:
    """Draw the line above a row of children, and each child's short connection to this line, with its link."""
    trunk = box.x + _PAD / 2
    line = []
    for number, row in enumerate(box.rows):
        y = row[0].y - _STUB + 3
        start = trunk if number else row[0].x + 16
        line.append(f"M{start:.0f} {y:.0f}H{row[-1].x + 16:.0f}")
    if len(box.rows) > 1:
        line.append(
            f"M{box.rows[0][0].x + 16:.0f} {box.rows[0][0].y - _STUB + 3:.0f}H{trunk:.0f}"
            f"V{box.rows[-1][0].y - _STUB + 3:.0f}"
        )
    out.append(f'<path class="bus" d="{"".join(line)}"/>')
    for child in box.children:
        y = child.y - _STUB + 3
        style = "link lost" if child.degraded else "link"
        out.append(f'<path class="{style}" d="M{child.x + 16:.0f} {y:.0f}V{child.y:.0f}"/>')
        if child.link:
            x = child.x + 22
            if child.degraded:
                out.append(f'<path class="mark" d="M{x:.0f} {child.y - 5:.0f}l5 -9l5 9z"/>')
                x += 13
            out.append(f'<text class="{style}" x="{x:.0f}" y="{child.y - 6:.0f}">{escape(child.link)}</text>')
