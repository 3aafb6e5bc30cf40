# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The report in a real browser: no errors, no external loads, no horizontal scrolling, readable in light and dark."""

from __future__ import annotations

import copy

import pytest

from .chromium import CHROMIUM, CONTRAST, OVERFLOWING_BOXES, Browser
from .test_report_site import EVIL, evil

pytestmark = pytest.mark.skipif(not CHROMIUM, reason="Chromium is not installed")

PAGES = ["index", "nodes/h100-04", "nodes/h100-09", "nodes/vmd-1", "nodes/sriov-1", "nodes/gb300-1", "nodes/azure-vm-1"]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280, 2560])
@pytest.mark.parametrize("page", PAGES)
def test_pages_are_readable_and_load_nothing_else(browser, built, page, width, dark):
    path = built.folder / f"{page}.html"
    browser.open(path, width, dark)
    browser.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
    assert browser.problems == []
    assert [url for url in browser.loads if url not in (path.as_uri(), "data:,")] == []
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate(OVERFLOWING_BOXES) == []
    found = browser.evaluate(CONTRAST)
    assert found["seen"] > 50 and found["bad"] == []


def test_contrast_check_can_fail(browser, built):
    browser.open(built.folder / "index.html")
    browser.evaluate("document.querySelector('h1').style.color = '#aaa'")
    assert browser.evaluate(CONTRAST)["bad"]


def test_overflow_check_can_fail(browser, built):
    browser.open(built.folder / "index.html", 360)
    browser.evaluate("document.querySelector('h1').style.width = '500px'")
    assert browser.evaluate(OVERFLOWING_BOXES) and browser.evaluate("document.documentElement.scrollWidth") > 360


def test_security_policy_stops_injected_script(browser, built, tmp_path):
    """Even a template that forgets to escape cannot run a host's script or load a host's picture."""
    page = tmp_path / "page.html"
    injected = "<script>window.pwned = 1</script><img src='nothing.png' onerror='pwned = 2'><main"
    page.write_text(built.text().replace("<main", injected, 1))
    browser.open(page)
    assert browser.evaluate("typeof pwned") == "undefined"
    assert any("Content Security Policy" in problem for problem in browser.problems)


def test_hostile_and_huge_text(browser, machines, report):
    facts = copy.deepcopy(evil(machines["degraded"]))
    for gpu in facts["gpus"]:
        gpu["model"] = "W" * 3000
    report.run({"x" * 253: facts, EVIL: machines["vmd"]}, title="T" * 300)
    for page in report.folder.rglob("*.html"):
        browser.open(page, 360)
        browser.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
        assert browser.problems == []
        assert browser.evaluate("document.documentElement.scrollWidth") <= 360


def names(browser: Browser) -> list[str]:
    return browser.evaluate(
        "[...document.querySelectorAll('table[data-sort] tbody tr:not([hidden]) th')].map((e) => e.textContent.trim())"
    )


def test_tables_can_be_sorted_and_filtered(browser, built):
    browser.open(built.folder / "index.html")
    before = names(browser)
    browser.evaluate("document.querySelectorAll('table[data-sort] th button')[3].click()")
    column = "[...document.querySelectorAll('table[data-sort] tbody tr')].map((r) => +r.cells[3].textContent)"
    counts = browser.evaluate(column)
    assert counts == sorted(counts) and len(set(counts)) > 3
    assert browser.evaluate("document.querySelectorAll('table[data-sort] th')[3].ariaSort") == "ascending"
    browser.evaluate("document.querySelectorAll('table[data-sort] th button')[0].click()")
    assert names(browser) == before, "natural order: h100-2 before h100-10"
    browser.evaluate(
        "const box = document.getElementById('filter'); box.value = 'h100 outlier';"
        "box.dispatchEvent(new Event('input'))"
    )
    assert names(browser) == ["h100-09"]
    assert browser.evaluate("document.querySelector('[role=status]').textContent") == f"1 of {len(before)}"


def test_without_script_all_rows_are_shown_without_controls(browser, built, fleet):
    browser.open(built.folder / "index.html", script=False)
    assert browser.evaluate("document.querySelectorAll('table[data-sort] tbody tr').length") == len(fleet) + 1
    assert browser.evaluate("document.querySelectorAll('th button, #filter').length") == 0


def test_everything_interactive_is_reached_by_the_tab_key(browser, built):
    """Tab reaches the skip link first, and then all other interactive elements; scrollable regions can be focused."""
    browser.open(built.folder / "nodes/h100-04.html")
    browser.press("Tab", 9)
    assert browser.evaluate("document.activeElement.className") == "skip"
    assert browser.evaluate("document.activeElement.getBoundingClientRect().left >= 0")
    browser.press("Enter", 13)
    assert browser.evaluate("location.hash") == "#main"
    assert browser.evaluate(
        "[...document.querySelectorAll('.scroll')].every((e) => e.tabIndex === 0 "
        "&& e.getAttribute('role') === 'region' && e.getAttribute('aria-label'))"
    )
    assert browser.evaluate(
        "[...document.querySelectorAll('svg')].every((e) => e.getAttribute('aria-labelledby')"
        ".split(' ').every((id) => document.getElementById(id).textContent))"
    )


def test_printed_pages_fit_and_leave_out_the_contents(browser, built):
    browser.open(built.folder / "nodes/h100-04.html", width=800, media="print")
    assert browser.evaluate("getComputedStyle(document.querySelector('.toc')).display") == "none"
    assert browser.evaluate("document.querySelector('svg').getBoundingClientRect().width") <= 800


#: Texts of the drawing that extend beyond their box.
OVERFLOWING_TITLES = """[...document.querySelectorAll("svg.tree text.h, svg.tree .chip text")].filter((text) => {
  const rects = text.parentElement.querySelectorAll(":scope > rect");
  return text.getBoundingClientRect().right > rects[rects.length - 1].getBoundingClientRect().right + 1;
}).map((text) => text.textContent)"""


def test_titles_of_the_drawing_do_not_overflow_their_boxes(browser, machines, report):
    facts = copy.deepcopy(machines)
    for entry in facts.values():
        for node in entry["numa_nodes"]:
            node["cpus"] = ",".join(str(number) for number in range(node["id"], 200, 2))
    report.run({**machines, **{f"{name}-long": item for name, item in facts.items()}})
    for name in report.files():
        if name.endswith(".html") and name != "index.html":
            browser.open(report.folder / name)
            assert browser.evaluate(OVERFLOWING_TITLES) == [], name


@pytest.mark.parametrize("script", [True, False])
def test_collapsed_details_are_printed(browser, built, script):
    """With and without the script."""
    browser.open(built.folder / "index.html", script=script)
    closed = "[...document.querySelectorAll('details:not([open])')]"
    collapsed = f"""{closed}.filter((e) => e.getBoundingClientRect().height
      < e.firstElementChild.getBoundingClientRect().height + 8).length"""
    assert browser.evaluate(collapsed) > 2
    browser.call("Emulation.setEmulatedMedia", media="print", features=[])
    assert browser.evaluate(collapsed) == 0
    assert browser.evaluate(f"{closed}.length") > 2


@pytest.mark.long
def test_a_large_fleet_opens_quickly(browser, machines, report):
    node = machines["hgx-h100"]
    report.run({f"node{number:04}": node for number in range(1000)})
    browser.open(report.folder / "index.html")
    assert browser.problems == []
    milliseconds = browser.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
    print(f"1000 nodes: loaded in {milliseconds:.0f} ms")
    assert milliseconds < 3000
