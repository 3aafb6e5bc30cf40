# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# Note: this file is private to the collection.

"""The results of the module allocation_plan as one page, escaped and styled as the site report.

The states of a device differ in shape or fill, not only in colour, and the tables have the same numbers.
"""

from __future__ import annotations

import typing as t
from collections import Counter
from html import escape

from markupsafe import Markup

from ..module_utils.dra.plan.fleet_map import STATES, counts
from .alignment_pages import cleaned
from .report_facts import natural
from .report_pages import Pages
from .values import Json

#: The maximum number of nodes, of stranded devices, of reasons, and of names of nodes for a reason, on the page. The
#: JSON beside it has all.
MAX_NODES, MAX_STRANDED, MAX_REASONS, MAX_NAMES = 2000, 400, 50, 12
#: The size of a square and the distance from one to the next, in pixels, and the number of squares in a row.
_SIZE, _PITCH, _ROW = 9, 12, 16
_KINDS = ("gpu", "nic", "cpu", "other")
#: What each state means, for the legend.
LEGEND = {
    "used": "A claim has it.",
    "free": "A pod of one of the workloads can get it now.",
    "stranded": "It is free, but none of the workloads can use it now.",
    "held": "It is free, but a hold reserves it for a job.",
    "degraded": "It is free, but its driver or a rule has put a taint on it.",
    "unknown": "It is free. Whether a workload can use it cannot be determined.",
}


def render(folders: t.Sequence[str], title: str, plan: t.Mapping[str, object]) -> bytes:
    """The page. A template is read from the first of the `folders` that has it.

    Raises `jinja2.TemplateError` if a template is missing or faulty, and KeyError or TypeError if `plan` is not a
    result of the module.
    """
    pages = Pages(folders, title)
    result = t.cast(Json, cleaned(dict(plan)))
    fleet, worth = result["fleet"], result["worth"]
    fits = result["after"] or result["fit"]
    nodes = sorted(fleet["nodes"], key=lambda node: natural(node["node"]))
    template = pages.environment.get_template("plan.html.j2")
    text = template.render(
        fits=result["fit"],
        last=fits,
        steps=result["steps"],
        worth=worth,
        notes=result["notes"],
        counts=counts(fleet),
        meaning=LEGEND,
        key={state: Markup(_key(letter)) for letter, state in STATES.items()},
        groups=[(name, [_Row(fleet, node) for node in members]) for name, members in _groups(nodes[:MAX_NODES])],
        drawn=min(len(nodes), MAX_NODES),
        nodes=len(nodes),
        reasons=[(fit, _reasons(fit)) for fit in fits],
        stranded=result["stranded"][:MAX_STRANDED],
        more_stranded=max(0, len(result["stranded"]) - MAX_STRANDED),
        by={label: _by(fits, label) for label in (fits[0]["by"] if fits else ())},
    )
    return text.encode("utf-8", "replace")


class _Row:
    """A node of the map, with a drawing of its devices by kind, and how many are in each state."""

    def __init__(self, fleet: Json, node: Json) -> None:
        shape = fleet["shapes"][node["shape"]]
        self.name: str = node["node"]
        self.closed: str = node["closed"]
        self.unclear: list[str] = sorted(node["unclear"].values())
        tally = Counter(node["states"])
        self.counts: dict[str, int] = {state: tally[letter] for letter, state in STATES.items()}
        listed = ", ".join(f"{number} {state}" for state, number in self.counts.items() if number) or "no devices"
        rows = []
        for kind in _KINDS:
            of_kind = [letter for device, letter in zip(shape, node["states"]) if device["kind"] == kind]
            rows += [of_kind[start : start + _ROW] for start in range(0, len(of_kind), _ROW)]
        self.drawing = Markup(drawing(rows, f"{self.name}: {listed}"))


def drawing(rows: t.Sequence[t.Sequence[str]], name: str) -> str:
    """A small SVG of rows of devices. Each device is given as the letter of its state; each state has one path."""
    paths: dict[str, list[str]] = {}
    for y, row in enumerate(rows):
        for x, letter in enumerate(row):
            paths.setdefault(letter, []).append(f"M{x * _PITCH + 1} {y * _PITCH + 1}{_SHAPES[letter]}")
    width = max(map(len, rows), default=1) * _PITCH
    height = max(len(rows), 1) * _PITCH
    body = "".join(f'<path class="d{letter}" d="{"".join(parts)}"/>' for letter, parts in paths.items())
    return (
        f'<svg class="map" role="img" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
        f"<title>{escape(name)}</title>{body}</svg>"
    )


_BOX = f"h{_SIZE}v{_SIZE}h-{_SIZE}z"
#: The shape of each state as an SVG path from the upper left corner of the square.
_SHAPES = {
    "u": _BOX,
    "f": _BOX,
    "s": f"{_BOX}l{_SIZE} {_SIZE}m0-{_SIZE}l-{_SIZE} {_SIZE}",
    "h": f"v{_SIZE}h{_SIZE}z",
    "d": f"m4.5 0l4.5 {_SIZE}h-{_SIZE}z",
    "x": "m4.5 0l4.5 4.5l-4.5 4.5l-4.5-4.5z",
}


def _key(letter: str) -> str:
    """One square for the legend, which has a text beside it."""
    path = f'<path class="d{letter}" d="M1 1{_SHAPES[letter]}"/>'
    size = f'width="{_PITCH}" height="{_PITCH}" viewBox="0 0 {_PITCH} {_PITCH}"'
    return f'<svg class="map" aria-hidden="true" {size}>{path}</svg>'


def _groups(nodes: list[Json]) -> list[tuple[str, list[Json]]]:
    """The nodes by the first of their labels, such as the rack."""
    groups: dict[str, list[Json]] = {}
    for node in nodes:
        label = next((f"{name}: {value}" for name, value in node["labels"].items()), "")
        groups.setdefault(label, []).append(node)
    return sorted(groups.items(), key=lambda group: natural(group[0]))


def _reasons(fit: Json) -> list[tuple[str, int, list[str], int]]:
    """Why no more pods fit: each reason, the number of its nodes, some of their names, and how many names are omitted.

    The reason of most nodes comes first.
    """
    names_by_reason: dict[str, list[str]] = {}
    for name, node in fit["nodes"].items():
        names_by_reason.setdefault(node["reason"], []).append(name)
    rows = sorted(names_by_reason.items(), key=lambda row: (-len(row[1]), row[0]))[:MAX_REASONS]
    return [(reason, len(names), names[:MAX_NAMES], max(0, len(names) - MAX_NAMES)) for reason, names in rows]


def _by(fits: list[Json], label: str) -> list[tuple[str, list[int]]]:
    """The counts of all workloads for each value of a label."""
    values = sorted({value for fit in fits for value in fit["by"].get(label, {})}, key=natural)
    return [(value, [fit["by"].get(label, {}).get(value, 0) for fit in fits]) for value in values[:MAX_NODES]]
