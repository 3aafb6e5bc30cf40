# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# Note: this file is private to the collection.

"""Curves over time as small SVGs for pages. Each curve has its own colour and dash pattern."""

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
_MARKER_RADIUS = 3
#: The maximum number of curves in a plot, because each one needs its own stroke.
MAX_CURVES = len(_STROKES)


_Point = tuple[float, float]


@dataclass(frozen=True)
class Curve:
    """A name, and points (time, value) in the order of time. None interrupts the line where values are unknown.

    Values are not negative.
    """

    name: str
    points: t.Sequence[_Point | None]


def plot(title: str, curves: t.Sequence[Curve], time_unit: str, steps: bool = False) -> Markup:
    """The first MAX_CURVES curves with both axes and a legend; empty if they have no points.

    `time_unit` is the unit of the points' times, such as `h`. With `steps`, a value is valid until the next one.
    """
    curves = curves[:MAX_CURVES]
    known = [point for curve in curves for point in curve.points if point]
    if not known:
        return Markup("")
    start, end = min(x for x, _y in known), max(x for x, _y in known)
    top = max(y for _x, y in known) or 1.0
    width, height = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM

    def pixels(point: _Point) -> _Point:
        return _LEFT + width * (point[0] - start) / ((end - start) or 1.0), _TOP + height * (1 - point[1] / top)

    drawn = "".join(
        _drawn_curve([point and pixels(point) for point in curve.points], steps, colour, dash)
        for curve, (colour, dash) in zip(curves, _STROKES)
    )
    axis = f"M{_LEFT} {_TOP}V{_TOP + height}H{WIDTH - _RIGHT}"
    texts = [
        (_LEFT - 4, _TOP + 8, "end", f"{top:.4g}"),
        (_LEFT - 4, _TOP + height, "end", "0"),
        (_LEFT, HEIGHT - 6, "start", f"{start:.4g} {time_unit}"),
    ]
    if end > start:
        texts.append((WIDTH - _RIGHT, HEIGHT - 6, "end", f"{end:.4g} {time_unit}"))
    labels = "".join(
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="var(--soft)" font-size="11">{escape(text)}</text>'
        for x, y, anchor, text in texts
    )
    return Markup(
        f'<svg class="plot" role="img" viewBox="0 0 {WIDTH} {HEIGHT}"><title>{escape(clean(title))}</title>'
        f'<path d="{axis}" fill="none" stroke="var(--wire)"/>{drawn}{labels}</svg>'
        f'<ul class="legend">{_legend(curves)}</ul>'
    )


def _legend(curves: t.Sequence[Curve]) -> str:
    return "".join(
        f'<li><svg width="34" height="8" aria-hidden="true"><path d="M0 4H34" stroke="var({colour})" stroke-width="2" '
        f'stroke-dasharray="{dash}"/></svg> {escape(clean(curve.name))}</li>'
        for curve, (colour, dash) in zip(curves, _STROKES)
    )


def _drawn_curve(points: t.Sequence[_Point | None], steps: bool, colour: str, dash: str) -> str:
    """A curve in SVG: lines, and a marker for each point that is connected to no other. Points are in pixels."""
    sections: list[list[_Point]] = [[]]
    for point in points:
        if point is None:
            sections.append([])
        else:
            sections[-1].append(point)
    path = "".join(_path(section, steps) for section in sections if len(section) > 1)
    drawn = (
        f'<path d="{path}" fill="none" stroke="var({colour})" stroke-width="2" stroke-dasharray="{dash}"/>'
        if path
        else ""
    )
    return drawn + "".join(
        f'<circle cx="{section[0][0]:.1f}" cy="{section[0][1]:.1f}" r="{_MARKER_RADIUS}" fill="var({colour})"/>'
        for section in sections
        if len(section) == 1
    )


def _path(points: t.Sequence[_Point], steps: bool) -> str:
    """The path in SVG that connects points."""
    (x, y), *others = points
    commands = [f"H{x:.1f}V{y:.1f}" if steps else f"L{x:.1f} {y:.1f}" for x, y in others]
    return f"M{x:.1f} {y:.1f}" + "".join(commands)
