# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The alignment report: the contents of the page, and the page in a real browser, light and dark, narrow and wide."""

from __future__ import annotations

import copy
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.alignment.plan import placements, predict, predict_claims
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.published import Pools
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.knowledge import PCIE_ROOT
from ansible_collections.lanewise.dra.plugins.plugin_utils import alignment_pages
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.alignment.node_with_claims import (
    NODE,
    NodeWithClaims,
    match_attribute,
    nearest_nic,
)

from .chromium import CONTRAST, OVERFLOWING_BOXES

ROLES = Path(alignment_pages.__file__).parents[2] / "roles"
FOLDERS = [str(ROLES / role / "templates" / "report") for role in ("alignment", "topology")]
EVIL = "</title><script>window.pwned = 1</script>\u202e\x1b[31m<img src=x onerror=pwned=2>"


def example_result() -> dict[str, t.Any]:
    """A cluster with every verdict, a prediction, measurements and a comparison."""
    node = NodeWithClaims("hgx-h100")
    pairs = [(gpu, nearest_nic(node, gpu)) for gpu in node.machine.gpus]
    for index, (gpu, nic) in enumerate(pairs[:4]):
        node.add_claim(
            {"gpu": gpu, "nic": nic},
            match_attribute("gpu", "nic"),
            name=("kept", "broken", "unknown", "long" * 60)[index],
        )
    for attributes in (
        node.published_device(pairs[1][1])["attributes"],
        node.facts["functions"][pairs[1][1]]["kubernetes"],
    ):
        attributes.update({PCIE_ROOT: {"string": "pci0000:ff"}, "pcieRoot": "pci0000:ff"})
    node.published_device(pairs[2][1])["attributes"].pop(PCIE_ROOT)
    node.add_claim({"gpu": pairs[4][0], "nic": pairs[0][1]}, name="chance")
    answer = node.check()
    predictions = predict_claims(answer["claims"], {NODE: node.machine})
    for claim in answer["claims"]:
        claim["predictions"], claim["measured"] = predictions.get(claim["claim"], []), []
    details = {"peer": "ml/other", "measured": True, "bytes": None, "details": {}}
    answer["claims"][0]["measured"] = [
        {**details, "tool": "ib_write_bw", "gb_per_s": 45.1, "latency_us": None, "problem": ""},
        {**details, "tool": "iperf3", "gb_per_s": None, "latency_us": None, "problem": EVIL},
    ]
    plan = placements(NODE, node.machine, Pools(node.slices).on(NODE), pairs[7][0])
    parts = {part: predict(node.machine, [(pairs[7][0], plan[part]["address"])])[0] for part in ("nearest", "farthest")}
    missing = {"node": EVIL, "gpu_address": "0000:00:00.0", "reason": EVIL, "objects": []}
    answer["comparisons"] = [{**plan, "predictions": parts, "objects": []}, missing]
    answer["notes"] = [EVIL]
    return answer


@pytest.fixture(scope="module", name="checked")
def _checked() -> dict[str, t.Any]:
    return example_result()


def page(checked: dict[str, t.Any], title: str = "Alignment of claims") -> str:
    return alignment_pages.render(FOLDERS, title, checked).decode()


def test_the_page_shows_every_verdict(checked):
    text = page(checked)
    for word in ("ml/kept", "ml/broken", "ml/unknown", "ml/chance", "could be aligned", "What to do:", "measured 45.1"):
        assert word in text
    assert {claim["verdict"] for claim in checked["claims"]} == {"kept", "broken", "unknown", "none"}
    assert text.count('<svg class="plot"') == 4
    assert text.index("ml/broken") < text.index("ml/unknown") < text.index("ml/kept"), "the worst first"
    assert "predicted" in text and "<script>window.pwned" not in text
    assert "\u202e" not in text and "\x1b" not in text
    assert page(checked) == text


def test_a_page_without_claims_has_a_message_and_no_plot():
    empty = {"kept": 0, "broken": 0, "unknown": 0, "none": 0, "claims": 0, "pending": 0, "unproven": 0}
    text = page({"summary": empty, "claims": [], "comparisons": [], "notes": []})
    assert "No claim is allocated." in text and '<svg class="plot"' not in text


def test_a_page_shows_only_some_of_thousands_of_claims(checked):
    many = copy.deepcopy(checked)
    claim = many["claims"][0]
    many["claims"] = [{**claim, "claim": f"ml/{index}", "node": f"node-{index}"} for index in range(3000)]
    text = page(many)
    assert "and 2600 more, see alignment.json" in text and "ml/2999" in text
    assert len(text) < 8_000_000


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280, 2560])
def test_the_page_is_readable_and_loads_nothing_else_in_a_browser(browser, checked, tmp_path, width, dark):
    path = tmp_path / "alignment.html"
    path.write_text(page(checked, EVIL * 3))
    browser.open(path, width, dark)
    browser.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
    assert browser.problems == []
    assert [url for url in browser.loads if url not in (path.as_uri(), "data:,")] == []
    assert browser.evaluate("typeof pwned") == "undefined"
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate(OVERFLOWING_BOXES) == []
    seen = browser.evaluate(CONTRAST)
    assert seen["seen"] > 50 and seen["bad"] == []
