# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The page of a plan: its contents and size, and the page in a real browser, light and dark, narrow and wide."""

from __future__ import annotations

import copy
import re
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.plugin_utils import plan_pages
from ansible_collections.lanewise.dra.tests.common.plans import example_plan

from .chromium import CONTRAST, OVERFLOWING_BOXES

ROLES = Path(plan_pages.__file__).parents[2] / "roles"
FOLDERS = [str(ROLES / role / "templates" / "report") for role in ("alignment", "topology")]
EVIL = "</title><script>window.pwned = 1</script>\u202e\x1b[31m<img src=x onerror=pwned=2>"


@pytest.fixture(scope="module", name="plan")
def _plan() -> dict[str, t.Any]:
    return example_plan()


def page(plan: dict[str, t.Any], title: str = "What still fits") -> str:
    return plan_pages.render(FOLDERS, title, plan).decode()


def evil(plan: dict[str, t.Any]) -> dict[str, t.Any]:
    """The plan with hostile text in all values that come from the cluster."""
    bad = copy.deepcopy(plan)
    node = bad["fleet"]["nodes"][0]
    node.update(node=EVIL, closed=EVIL, unclear={"x": EVIL * 40}, labels={EVIL: EVIL})
    bad["stranded"][0].update(node=EVIL, device=EVIL, reason=EVIL, holders=[EVIL] * 500)
    bad["notes"] = [EVIL] * 1000
    bad["fit"][0]["workload"] = bad["after"][0]["workload"] = EVIL
    bad["steps"] = [{"step": EVIL, "totals": {EVIL: 1, **step["totals"]}} for step in bad["steps"]]
    for fits in (bad["fit"], bad["after"]):
        fits[0]["nodes"][EVIL] = {"count": 0, "kind": "devices", "reason": EVIL * 100}
        fits[0]["by"] = {EVIL: {EVIL: 1}}
        fits[0].update(over_quota=1, quota=EVIL)
    return bad


def test_every_state_and_count_is_on_the_page(plan):
    text = page(plan)
    assert {letter for node in plan["fleet"]["nodes"] for letter in node["states"]} == set("ufsdh")
    for letter in "ufsdh":
        assert f'class="d{letter}"' in text
    for word in (
        "stranded",
        "held",
        "degraded",
        "the node is cordoned",
        "team/",
        "Gbit/s stranded",
        "EUR an hour",
        "rack: 2",
    ):
        assert word in text
    assert text.count('<svg class="map" role="img"') == len(plan["fleet"]["nodes"])
    assert '<th scope="col" class="num">EUR an hour</th>' in text
    nic = next(entry for entry in plan["stranded"] if entry["gbps"] and entry["certain"])
    assert nic["money"] == 0.25 and f'<td class="num">{nic["gbps"]}</td><td class="num">0.25</td>' in text
    number = sum(node["states"].count("s") for node in plan["fleet"]["nodes"])
    assert f"<dt>Stranded</dt><dd>{number}</dd>" in text
    assert page(plan) == text


def test_the_map_has_a_square_for_each_device():
    rows = [list("ufsdhx"), list("u")]
    drawing = plan_pages.drawing(rows, "n: <b>")
    assert drawing.count("M") == 7 and "<b>" not in drawing
    assert drawing.count("<path") == 6


def test_hostile_text_is_escaped(plan):
    text = page(evil(plan), EVIL)
    assert "<script>window.pwned" not in text and "<img" not in text
    assert "\u202e" not in text and "\x1b" not in text and len(text) < 1_000_000


def test_a_page_of_a_thousand_nodes_is_small_and_more_are_left_out(plan):
    many = copy.deepcopy(plan)
    node = many["fleet"]["nodes"][0]
    many["fleet"]["nodes"] = [{**node, "node": f"node-{number:05d}.example.com"} for number in range(1000)]
    small = page(many)
    assert len(small) < 1_200_000
    many["fleet"]["nodes"] = [{**node, "node": f"node-{number}"} for number in range(10_000)]
    many["stranded"] = many["stranded"][:1] * 50_000
    large = page(many)
    assert len(large) < 3_000_000
    assert "and 8000 more nodes, see plan.json" in large and "and 49600 more, see plan.json" in large


@pytest.mark.parametrize("hostile", [False, True], ids=["plain", "hostile"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280, 2560])
def test_the_page_is_readable_and_loads_nothing_else_in_a_browser(browser, plan, tmp_path, width, dark, hostile):
    path = tmp_path / "plan.html"
    path.write_text(page(evil(plan), EVIL * 3) if hostile else page(plan))
    browser.open(path, width, dark)
    assert browser.problems == []
    assert [url for url in browser.loads if url not in (path.as_uri(), "data:,")] == []
    assert browser.evaluate("typeof pwned") == "undefined"
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate(OVERFLOWING_BOXES) == []
    seen = browser.evaluate(CONTRAST)
    assert seen["seen"] > 50 and seen["bad"] == []


def test_states_differ_in_shape_and_have_names(browser, plan, tmp_path):
    """A reader without colours can tell states apart, and a screen reader has names for them."""
    path = tmp_path / "plan.html"
    path.write_text(page(plan))
    browser.open(path)
    shapes = browser.evaluate(
        "['f', 's', 'd', 'h'].map((s) => document.querySelector(`.states .d${s}`).getAttribute('d'))"
    )
    assert len(set(shapes)) == 4
    fills = browser.evaluate("['u', 'f'].map((s) => getComputedStyle(document.querySelector(`.states .d${s}`)).fill)")
    assert len(set(fills)) == 2, "in use is filled, free is not"
    names = browser.evaluate(
        "[...document.querySelectorAll('svg[role=img]')].map((e) => e.querySelector('title').textContent)"
    )
    assert names and all(re.search(r": \d+ ", name) for name in names)
    browser.evaluate("document.querySelectorAll('#nodes th button')[3].click()")
    assert browser.evaluate("document.querySelectorAll('#nodes tbody tr').length") == len(plan["fleet"]["nodes"])
