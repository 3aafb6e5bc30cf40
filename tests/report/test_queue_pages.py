# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The pages about queues: their contents, hostile names, and the pages in a real browser, light and dark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import typing as t
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.queues.usage import Sample, Share, totals
from ansible_collections.lanewise.dra.plugins.module_utils.dra.replay.score import Run, score
from ansible_collections.lanewise.dra.plugins.module_utils.dra.replay.trace import Job
from ansible_collections.lanewise.dra.plugins.plugin_utils import kueue_metrics, queue_pages
from ansible_collections.lanewise.dra.plugins.plugin_utils.plots import Curve, plot
from ansible_collections.lanewise.dra.tests.common.places import COLLECTIONS

from .chromium import CONTRAST, OVERFLOWING_BOXES, Browser

ANSIBLE = str(Path(sys.executable).with_name("ansible"))
ROLES = Path(queue_pages.__file__).parents[2] / "roles"
FOLDERS = [str(ROLES / role / "templates" / "report") for role in ("queues", "topology")]
EVIL = "</title><script>window.pwned = 1</script>\u202e<img src=x onerror=pwned=2>"


def usage(team: str = "red") -> str:
    start = datetime(2026, 11, 25, tzinfo=timezone.utc)
    samples = []
    for number, minutes in enumerate((0, 10, 20, 90, 100)):
        shares = {team: Share(4, number), "blue": Share(4, 4 + number % 3)}
        samples.append(
            Sample(start + timedelta(minutes=minutes), {"gpus": shares}, {}, {team: {team: 2}}, [f"{team} lends"])
        )
    return queue_pages.usage_page(FOLDERS, team, totals(samples), samples, 900).decode()


def replay(name: str = "fixed") -> str:
    jobs = [Job(0, 0, name, name, 1, 3600), Job(1, 60, "blue", "", 2, 60)]
    result = score(jobs, {0: Run(0, [(9, 3000)], True, 1, True), 1: Run(60)}, 8, 7200)
    return queue_pages.replay_page(FOLDERS, name, [{"name": name, **result}, {"name": "lent", **result}]).decode()


def test_the_pages_show_debts_gaps_and_curves() -> None:
    text = usage()
    assert "blue owes red" in text and "Hours known" in text and "no sample" in text and 'class="plot"' in text
    assert "from 2026-11-25T00:20:00Z to 2026-11-25T01:30:00Z" in text
    text = replay()
    assert text.count('class="plot"') == 2 and "1 of 2" in text and "95th percentile" in text
    assert "There is no sample yet" in queue_pages.usage_page(FOLDERS, "t", totals([]), [], 900).decode()


def test_charges_are_read_from_kueues_metrics() -> None:
    """The flavors of a queue and a resource are summed, and names may contain any characters."""
    metrics = """# HELP kueue_cluster_queue_resource_reservation Reports the cluster_queue's total resource reservation
# TYPE kueue_cluster_queue_resource_reservation gauge
kueue_cluster_queue_resource_reservation{cluster_queue="a},\\"b",cohort="",flavor="f",resource="x/gpus"} 3
kueue_cluster_queue_resource_reservation{cluster_queue="a},\\"b",cohort="",flavor="g",resource="x/gpus"} 1e+01
kueue_cluster_queue_resource_usage{cluster_queue="red",cohort="",flavor="g",resource="x/gpus"} 7
"""
    assert kueue_metrics.charges(metrics) == {('a},"b', "x/gpus"): 13.0}
    empty = "# TYPE kueue_cluster_queue_resource_reservation gauge\n"
    assert kueue_metrics.charges(empty) == {}
    for text, reported in (
        ("<html>not found</html>", "not in Prometheus' text format"),
        ("process_cpu_seconds_total 3\n", "metrics.enableClusterQueueResources"),
        ('kueue_cluster_queue_resource_reservation{resource="x"} 3\n', "no label 'cluster_queue'"),
        ('kueue_cluster_queue_resource_reservation{cluster_queue="a",resource="x"} many\n', "text format"),
        ('kueue_cluster_queue_resource_reservation{cluster_queue="a",resource="x"} NaN\n', "not a finite number"),
    ):
        with pytest.raises(kueue_metrics.Unreadable, match=reported):
            kueue_metrics.charges(text)


def test_the_curve_of_a_plot_is_interrupted_where_a_value_is_missing() -> None:
    svg = str(plot("t", [Curve("a", [(0, 1), (1, 2), None, (5, 1), (6, 0)])], "h", steps=True))
    assert svg.count("M") == 4  # two parts of the curve, the axes and the legend
    assert plot("t", [Curve("a", [])], "h") == ""


@pytest.mark.parametrize("steps", [False, True])
def test_a_point_that_is_connected_to_no_other_has_a_marker(steps: bool) -> None:
    svg = str(plot("t", [Curve("a", [(2, 4)])], "h", steps=steps))
    assert '<circle cx="46.0" cy="10.0" r="3" fill="var(--nic)"/>' in svg and svg.count("<circle") == 1
    assert svg.count("2 h") == 1 and 'd=""' not in svg
    svg = str(plot("t", [Curve("a", [(0, 1), (1, 2), None, (5, 1), None, (6, 0)]), Curve("b", [])], "h", steps=steps))
    assert svg.count("<circle") == 2 and 'd=""' not in svg
    assert "<circle" not in str(plot("t", [Curve("a", [(0, 1), (1, 2)])], "h", steps=steps))


def test_a_plot_of_zeros_has_a_readable_axis() -> None:
    assert ">1</text>" in str(plot("t", [Curve("a", [(0, 0), (1, 0)])], "h"))


def test_the_pages_say_how_many_curves_the_plots_do_not_show() -> None:
    result = score([Job(0, 0, "red", "red", 1, 3600)], {0: Run(0, [(9, 3000)], True, 1, True)}, 8, 7200)
    for number in (5, 6):
        results = [{"name": f"s{index}", **result} for index in range(number)]
        text = queue_pages.replay_page(FOLDERS, "t", results).decode()
        assert ("The plots show the first 5 of 6 settings." in text) == (number == 6)
        assert text.count("<path") == 2 * (1 + 2 * 5)  # of two plots: the axes, and the curves with the legend
    start = datetime(2026, 11, 25, tzinfo=timezone.utc)
    shares = {f"t{number}": Share(4, number) for number in range(6)}
    samples = [Sample(start + timedelta(minutes=minute), {"gpus": shares}, {}, {}, []) for minute in (0, 10)]
    text = queue_pages.usage_page(FOLDERS, "t", totals(samples), samples, 900).decode()
    assert "The plot does not show 1 more team, the table does." in text


@pytest.mark.parametrize("content", [b"\xff\n", b"[" * 100_000 + b"\n", b"{}\n"])
def test_a_line_that_is_not_a_sample_is_reported(tmp_path: Path, content: bytes) -> None:
    samples = tmp_path / "usage-samples.jsonl"
    samples.write_bytes(content)
    command = [ANSIBLE, "localhost", "-m", "lanewise.dra.queue_usage", "-a", json.dumps({"dest": str(tmp_path)})]
    variables = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS), "ANSIBLE_HOME": str(tmp_path / "home")}
    answer = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    assert f"{samples}:1 is not a sample: " in answer.stdout + answer.stderr
    assert samples.read_bytes() == content and not (tmp_path / "usage.json").exists()


def test_hostile_names_are_escaped() -> None:
    for text in (usage(EVIL), replay(EVIL)):
        assert "<script>window" not in text and "<img" not in text and "\u202e" not in text


@pytest.mark.parametrize("page", [usage, replay])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_the_pages_are_readable_and_load_nothing_else_in_a_browser(
    browser: Browser, page: t.Callable[[], str], tmp_path: Path, width: int, dark: bool
) -> None:
    path = tmp_path / "page.html"
    path.write_text(page())
    browser.open(path, width, dark)
    assert browser.problems == []
    assert [url for url in browser.loads if url not in (path.as_uri(), "data:,")] == []
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate(OVERFLOWING_BOXES) == []
    assert browser.evaluate(CONTRAST)["bad"] == []
