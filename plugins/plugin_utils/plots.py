# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# Note: this file is private to the collection.

"""Curves over time as small SVGs for the report's pages. Each curve has its own colour and dash pattern."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass
from html import escape

from markupsafe import Markup

from .report_facts import clean

WIDTH, HEIGHT = 640, 180
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 8, 10, 24
#: Colours of the page's style sheet, and dash patterns.
_STROKES = (("--nic", ""), ("--gpu", "6 3"), ("--nvme", "2 3"), ("--warn-line", "8 3 2 3"), ("--dd", "12 4"))
#: The maximum number of curves in a plot; the page says how many it omits.
MAX_CURVES = len(_STROKES)


@dataclass(frozen=True)
class Curve:
    """A name, and points (time, value) in the order of time. None interrupts the line where values are unknown."""

    name: str
    points: t.Sequence[tuple[float, float] | None]


def plot(title: str, curves: t.Sequence[Curve], unit: str, steps: bool = False) -> Markup:
    """Curves with both axes and a legend. With `steps`, a value is valid until the next one. Empty without points."""
    known = [point for curve in curves for point in curve.points if point]
    if not known:
        return Markup("")
    start, end = min(x for x, _y in known), max(x for x, _y in known)
    top = max(max(y for _x, y in known), 1e-9)
    width, height = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM

    def pixels(point: tuple[float, float]) -> tuple[float, float]:
        return _LEFT + width * (point[0] - start) / ((end - start) or 1.0), _TOP + height * (1 - point[1] / top)

    drawn = []
    for curve, (colour, dash) in zip(curves, _STROKES):
        path = _path([point and pixels(point) for point in curve.points], steps)
        drawn.append(
            f'<path d="{path}" fill="none" stroke="var({colour})" stroke-width="2" stroke-dasharray="{dash}"/>'
        )
    axis = f"M{_LEFT} {_TOP}V{_TOP + height}H{WIDTH - _RIGHT}"
    texts = [
        (_LEFT - 4, _TOP + 8, "end", f"{top:.4g}"),
        (_LEFT - 4, _TOP + height, "end", "0"),
        (_LEFT, HEIGHT - 6, "start", f"{start:.4g} {unit}"),
        (WIDTH - _RIGHT, HEIGHT - 6, "end", f"{end:.4g} {unit}"),
    ]
    labels = "".join(
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="var(--soft)" font-size="11">{escape(text)}</text>'
        for x, y, anchor, text in texts
    )
    legend = "".join(
        f'<li><svg width="34" height="8" aria-hidden="true"><path d="M0 4H34" stroke="var({colour})" stroke-width="2" '
        f'stroke-dasharray="{dash}"/></svg> {escape(clean(curve.name))}</li>'
        for curve, (colour, dash) in zip(curves, _STROKES)
    )
    return Markup(
        f'<svg class="plot" role="img" viewBox="0 0 {WIDTH} {HEIGHT}"><title>{escape(clean(title))}</title>'
        f'<path d="{axis}" fill="none" stroke="var(--wire)"/>{"".join(drawn)}{labels}</svg>'
        f'<ul class="legend">{legend}</ul>'
    )


def _path(points: t.Sequence[tuple[float, float] | None], steps: bool) -> str:
    """The path of a curve in SVG."""
    commands: list[str] = []
    drawing = False
    for point in points:
        if point is None:
            drawing = False
            continue
        x, y = point
        if not drawing:
            commands.append(f"M{x:.1f} {y:.1f}")
        elif steps:
            commands.append(f"H{x:.1f}V{y:.1f}")
        else:
            commands.append(f"L{x:.1f} {y:.1f}")
        drawing = True
    return "".join(commands)
