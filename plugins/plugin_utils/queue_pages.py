# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# Note: this file is private to the collection.

"""The pages about queues, in the style of the site report: usage by team, and replayed streams of jobs."""

from __future__ import annotations

import typing as t

from ..module_utils.dra.queues.usage import Sample, Usage
from .alignment_pages import cleaned
from .plots import MAX_CURVES, Curve, plot
from .report_pages import Pages
from .values import Json

#: The maximum number of samples in a plot. If there are more, only every n-th is drawn.
_MAX_POINTS = 1000


def usage_page(folders: t.Sequence[str], title: str, usage: Usage, samples: t.Sequence[Sample], gap: float) -> bytes:
    """The usage of queues by team. Raises `jinja2.TemplateError` if a template is missing or faulty."""
    pages = Pages(folders, title)
    resources = sorted({name for sample in samples for name in sample.shares})
    last = samples[-1] if samples else None
    text = pages.environment.get_template("usage.html.j2").render(
        usage=t.cast(Json, cleaned(usage.as_dict())),
        plots=[(name, *_drawn(name, samples, gap)) for name in resources],
        loans=cleaned(list(last.loans)) if last else [],
        source=last.source if last else "",
    )
    return text.encode("utf-8", "replace")


def _drawn(resource: str, samples: t.Sequence[Sample], gap: float) -> tuple[t.Any, int]:
    """The plot of a resource, and the number of teams that it does not show: those with the lowest charges."""
    start = samples[0].time
    charged: dict[str, float] = {}
    for sample in samples:
        for team, share in sample.shares.get(resource, {}).items():
            charged[team] = charged.get(team, 0.0) + share.charged
    teams = sorted(charged, key=lambda team: (-charged[team], team))
    step = max(1, len(samples) // _MAX_POINTS)
    curves = []
    for team in teams[:MAX_CURVES]:
        points: list[tuple[float, float] | None] = []
        previous = None
        for sample in samples[::step]:
            if previous is not None and (sample.time - previous).total_seconds() > gap * step:
                points.append(None)
            share = sample.shares.get(resource, {}).get(team)
            points.append(((sample.time - start).total_seconds() / 3600, share.charged) if share else None)
            previous = sample.time
        curves.append(Curve(team, points))
    return plot(f"{resource}: charged by team over time", curves, "h", steps=True), max(0, len(teams) - MAX_CURVES)


def replay_page(folders: t.Sequence[str], title: str, results: t.Sequence[Json]) -> bytes:
    """The results of the module `queue_replay` for one stream of jobs, each with its name.

    Raises `jinja2.TemplateError`.
    """
    pages = Pages(folders, title)
    shown = t.cast("list[Json]", cleaned([dict(result) for result in results]))
    drawn = shown[:MAX_CURVES]
    used = [Curve(str(result["name"]), [(row[0], row[1]) for row in result["curve"]]) for result in drawn]
    waiting = [Curve(str(result["name"]), [(row[0], row[2]) for row in result["curve"]]) for result in drawn]
    text = pages.environment.get_template("replay.html.j2").render(
        results=shown,
        used=plot("GPUs that running jobs use", used, "h"),
        waiting=plot("GPUs that waiting jobs request", waiting, "h"),
        not_drawn=len(shown) - len(drawn),
    )
    return text.encode("utf-8", "replace")
