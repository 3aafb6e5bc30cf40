# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# Note: this file is private to the collection.

"""The results of the module alignment_check as one page, escaped and styled as the site report.

Everything that drawings and colours show is also in tables and text.
"""

from __future__ import annotations

import typing as t
from html import escape

from markupsafe import Markup

from .report_drawing import len_px
from .report_facts import LEVELS, clean
from .report_pages import Pages
from .values import Json

#: The label of each verdict, and the CSS class that colours it.
VERDICTS = {
    "kept": ("aligned", "kept"),
    "broken": ("broken", "broken"),
    "unknown": ("unknown", "doubt"),
    "none": ("no promise", "none"),
}
_SEVERITIES = {"error": "error", "warning": "warning", "note": "info"}
#: Sizes of the drawings in pixels: the height of a row, the widths of its parts, and the margin below the rows.
_ROW, _LABEL, _PLOT, _TEXT, _GAP = 24, 230, 430, 350, 8
#: The maximum number of claims shown in detail; the JSON beside the page has all.
MAX_CLAIMS = 400
_MAX_ROWS = 40


def cleaned(value: object) -> object:
    """Values from machines and from the API without characters that control a terminal or the direction of text."""
    if isinstance(value, str):
        return clean(value, 2000)
    if isinstance(value, dict):
        return {clean(str(key)): cleaned(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [cleaned(item) for item in value]
    return value


def render(folders: t.Sequence[str], title: str, checked: t.Mapping[str, object]) -> bytes:
    """The page. A template is read from the first of the `folders` that has it.

    Raises `jinja2.TemplateError` if a template is missing or faulty.
    """
    pages = Pages(folders, title)
    result = t.cast(Json, cleaned(dict(checked)))
    claims: list[Json] = sorted(result["claims"], key=_urgency)
    template = pages.environment.get_template("alignment.html.j2")
    text = template.render(
        claims=claims,
        detailed=claims[:MAX_CLAIMS],
        told=claims[:MAX_CLAIMS],  # its former name, for templates of sites
        summary=result["summary"],
        notes=result.get("notes") or [],
        comparisons=result.get("comparisons") or [],
        verdicts=VERDICTS,
        shades=_SEVERITIES,
        by_node=Markup(bars(_by_node(claims), "Claims by node", "claims")),
        by_level=Markup(bars(_by_level(claims), "GPUs by affinity to the nearest NIC of their claim", "GPUs")),
        rates=Markup(ranges(_rates(claims), "Predicted and measured rates")),
        compared=Markup(ranges(_compared(result.get("comparisons") or []), "Near and far placements, predicted")),
    )
    return text.encode("utf-8", "replace")


def _urgency(claim: Json) -> tuple[int, str]:
    """A sort key that puts broken claims first."""
    return (("broken", "unknown", "none", "kept").index(claim["verdict"]), claim["claim"])


def _by_node(claims: list[Json]) -> list[tuple[str, list[tuple[str, str, int]]]]:
    """The numbers of claims by node and by verdict."""
    rows: dict[str, dict[str, int]] = {}
    for claim in claims:
        counts = rows.setdefault(claim["node"] or "several or unknown nodes", {})
        counts[claim["verdict"]] = counts.get(claim["verdict"], 0) + 1
    return [
        (node, [(*VERDICTS[name], counts[name]) for name in VERDICTS if name in counts])
        for node, counts in sorted(rows.items())
    ]


def _by_level(claims: list[Json]) -> list[tuple[str, list[tuple[str, str, int]]]]:
    """The numbers of GPUs by the affinity level of the nearest NIC of their claim, and by whether it was promised."""
    counts: dict[str, dict[str, int]] = {}
    for claim in claims:
        best: dict[str, Json] = {}
        for pair in claim["pairs"]:
            known = best.get(pair["gpu"])
            if known is None or LEVELS.index(pair["level"]) < LEVELS.index(known["level"]):
                best[pair["gpu"]] = pair
        for pair in best.values():
            row = counts.setdefault(pair["level"], {})
            label = "promised" if pair["promised"] else "not promised"
            row[label] = row.get(label, 0) + 1
    shades = {"promised": "kept", "not promised": "none"}
    return [
        (level, [(label, shade, counts[level][label]) for label, shade in shades.items() if label in counts[level]])
        for level in LEVELS
        if level in counts
    ]


def _rates(claims: list[Json]) -> list[tuple[str, Json | None, list[tuple[str, float]]]]:
    """Claims with a prediction or a measurement. The prediction of a claim is that of its slowest GPU."""
    rows = []
    for claim in claims:
        rates = [prediction["gb_per_s"] for prediction in claim.get("predictions") or () if prediction["gb_per_s"]]
        measured = [
            (measurement["tool"], measurement["gb_per_s"])
            for measurement in claim.get("measured") or ()
            if measurement["gb_per_s"]
        ]
        if rates or measured:
            rows.append((claim["claim"], min(rates, key=lambda rate: rate["likely"]) if rates else None, measured))
    return rows


def _compared(comparisons: list[Json]) -> list[tuple[str, Json | None, list[tuple[str, float]]]]:
    """The predictions for the nearest and the farthest NIC of each compared GPU."""
    rows: list[tuple[str, Json | None, list[tuple[str, float]]]] = []
    for entry in comparisons:
        for part, prediction in (entry.get("predictions") or {}).items():
            rows.append((f"{entry['gpu_address']} {part} ({entry[part]['level']})", prediction["gb_per_s"], []))
    return rows


def _clip(text: str, width: float) -> str:
    """A text that fits in a width in pixels."""
    while len_px(text) > width - 12:
        text = text[:-2].rstrip("…") + "…"
    return text


def _label(text: str, y: float) -> str:
    return f'<text class="s" x="0" y="{y + 16}">{escape(_clip(text, _LABEL))}</text>'


def _frame(name: str, rows: int, body: list[str], description: str) -> str:
    width, height = _LABEL + _PLOT + _TEXT, rows * _ROW + _GAP
    return (
        f'<svg class="plot" role="img" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
        f"<title>{escape(name)}</title><desc>{escape(description)}</desc>{''.join(body)}</svg>"
    )


def bars(rows: list[tuple[str, list[tuple[str, str, int]]]], name: str, unit: str) -> str:
    """Stacked bars as SVG, empty without rows. Each row has its label and its parts (label, CSS class, number)."""
    if not rows:
        return ""
    drawn = rows[:_MAX_ROWS]
    max_total = max(sum(number for _label, _shade, number in parts) for _name, parts in drawn)
    body = []
    for index, (name_of_row, parts) in enumerate(drawn):
        y, x = index * _ROW, float(_LABEL)
        body.append(_label(name_of_row, y))
        for label, shade, number in parts:
            width = number / max_total * _PLOT
            body.append(
                f'<rect class="{shade}" x="{x:.1f}" y="{y + 3}" width="{width:.1f}" height="{_ROW - 7}">'
                f"<title>{escape(f'{name_of_row}: {number} {label}')}</title></rect>"
            )
            x += width
        text = ", ".join(f"{number} {label}" for label, _shade, number in parts)
        body.append(f'<text class="s" x="{x + 6:.1f}" y="{y + 16}">{escape(_clip(text, _TEXT))}</text>')
    description = f"{len(rows)} rows of {unit}" + (
        f", the first {len(drawn)} are drawn" if len(rows) > len(drawn) else ""
    )
    return _frame(name, len(drawn), body, description)


def ranges(rows: list[tuple[str, Json | None, list[tuple[str, float]]]], name: str) -> str:
    """Rates in GB/s as SVG: a bar from the low to the high of a prediction, and a mark for each measurement."""
    if not rows:
        return ""
    drawn = rows[:_MAX_ROWS]
    highs = [bounds["high"] for _label, bounds, _measured in drawn if bounds]
    max_rate = max([*highs, *(rate for _label, _bounds, measured in drawn for _tool, rate in measured), 1e-9])
    body = []
    for index, (label, bounds, measured) in enumerate(drawn):
        y = index * _ROW
        body.append(_label(label, y))
        end, texts = float(_LABEL), []
        if bounds:
            low, high, likely = (_LABEL + bounds[key] / max_rate * _PLOT for key in ("low", "high", "likely"))
            body.append(
                f'<rect class="range" x="{low:.1f}" y="{y + 7}" width="{max(high - low, 2):.1f}" height="{_ROW - 14}"/>'
                f'<path class="likely" d="M{likely:.1f} {y + 4}v{_ROW - 8}"/>'
            )
            end = high
            texts.append(f"predicted {bounds['low']}–{bounds['high']}")
        for tool, rate in measured:
            x = _LABEL + rate / max_rate * _PLOT
            body.append(f'<path class="mark" d="M{x:.1f} {y + 3}l6 9l-6 9l-6 -9z"><title>{escape(tool)}</title></path>')
            end = max(end, x + 6)
            texts.append(f"measured {rate} ({tool})")
        body.append(f'<text class="s" x="{end + 8:.1f}" y="{y + 16}">{escape(_clip("; ".join(texts), _TEXT))}</text>')
    return _frame(name, len(drawn), body, "GB/s; the table below has the same numbers")
