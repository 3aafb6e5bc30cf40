# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The pairs that claims can get, as marked on the nodes' pages, in a browser, and in the files of the report."""

from __future__ import annotations

import copy
import dataclasses
import json
import typing as t

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import compile_site
from ansible_collections.lanewise.dra.plugins.plugin_utils.report_claims import FILE
from ansible_collections.lanewise.dra.plugins.plugin_utils.report_formats import Unusable
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.claims.simulated_node import (
    with_near_nics,
    with_shuffled_nics,
)

from .chromium import CONTRAST, OVERFLOWING_BOXES, Browser
from .conftest import Report

Values = dict[str, t.Any]
DRIVERS: Values = {"gpu.nvidia.com": {"version": "0.5.0"}, "lanewise.dev": {"version": "1.0.0"}}

pytest.importorskip("cel_expr_python", reason="needs the CEL engine")

#: For each marked cell of the matrix: the addresses of its row and column, its title and its text.
MARKED = """[...document.querySelectorAll("table.matrix td.claimed")].map((cell) => {
  const column = cell.closest("table").tHead.rows[0].cells[cell.cellIndex];
  return [cell.parentElement.cells[0].title, column.title, cell.title, cell.textContent];
})"""
#: For each GPU, the lines of the last column in the table of pairs.
GIVEN = """[...document.querySelectorAll("#pairs tbody tr")].map((row) =>
  [row.cells[1].textContent, row.cells[row.cells.length - 1].innerText.split("\\n")])"""


def uses(nodes: Values, *names: str) -> list[Values]:
    """The result `boards` of rendering templates for nearest pairs of these nodes."""
    devices = [{"name": "gpu", "kind": "gpu"}, {"name": "nic", "kind": "rdma"}]
    templates = [
        {"name": name, "namespace": "training", "align": "nearest", "at_least": "NODE", "devices": devices}
        for name in names
    ]
    compiled = compile_site({"dra_claims_drivers": DRIVERS, "dra_claims_templates": templates}, nodes)
    return [dataclasses.asdict(board) for board in compiled.boards]


@pytest.fixture(scope="module")
def site(machines: Values) -> Values:
    """Two boards with the same addresses and different maps, one of another kind, and one without GPUs."""
    return {
        "own": with_shuffled_nics(copy.deepcopy(machines["hgx-h100"])),
        "shared": with_near_nics(copy.deepcopy(machines["hgx-h100"]), lambda i: [i // 2], "PXB"),
        "gb300": machines["gb300"],
        "cpu": machines["cpu-rdma"],
    }


@pytest.fixture(scope="module")
def rendered(site: Values) -> list[Values]:
    return uses({name: site[name] for name in ("own", "shared", "gb300")}, "pair", "other")


def expected(rendered: list[Values], host: str) -> dict[tuple[str, str], set[str]]:
    """The templates that give each pair of a host, from the result of rendering."""
    found: dict[tuple[str, str], set[str]] = {}
    for use in rendered:
        for board, _level, gpu, nic in use["pairs"]:
            if host in use["boards"][board]:
                found.setdefault((gpu, nic), set()).add(f"training/{use['name']}")
    return found


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("host", ["own", "shared", "gb300", "cpu"])
def test_the_matrix_marks_each_pair_and_no_other(
    browser: Browser, report: Report, site: Values, rendered: list[Values], host: str, width: int
) -> None:
    report.run(site, claims={"default": rendered})
    browser.open(report.folder / f"nodes/{host}.html", width, dark=width == 360)
    by_pair = expected(rendered, host)
    assert bool(by_pair) is (host != "cpu")
    both = {pair[:: 1 if turned else -1]: names for pair, names in by_pair.items() for turned in (True, False)}
    marked = {(row, column): set(title.split(", ")) for row, column, title, _text in browser.evaluate(MARKED)}
    assert marked == both
    assert all(text.endswith(" •") for *_rest, text in browser.evaluate(MARKED))
    lines = dict(browser.evaluate(GIVEN)) if by_pair else {}
    for gpu, reported in lines.items():
        names = {nic: sorted(names) for (mine, nic), names in by_pair.items() if mine == gpu}
        assert len(reported) == len(names)
        assert all(any(line.endswith(": " + ", ".join(claims)) for line in reported) for claims in names.values())
    assert browser.problems == []
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate(OVERFLOWING_BOXES) == [] and browser.evaluate(CONTRAST)["bad"] == []


def test_the_report_keeps_claims_until_they_are_replaced(report: Report, site: Values, rendered: list[Values]) -> None:
    report.run(site)
    bare = report.text("nodes/own.html")
    assert not (report.folder / FILE).exists() and "•" not in bare
    assert report.run(site, claims={"default": rendered}).changed
    marked = report.text("nodes/own.html")
    assert "training/pair" in marked and "training/other" in marked
    assert not report.run(site, claims={"default": rendered}).changed
    assert not report.run(site).changed, "a probe keeps the claims of the report"
    assert report.run({}, play=set(), inventory=set(site), prune=False, claims={"more": rendered[:1]}).changed
    assert set(json.loads(report.text(FILE))["sites"]) == {"default", "more"}
    report.run(site, claims={"default": [], "more": []})
    assert report.text("nodes/own.html") == bare
    assert not report.run(site, claims={"default": []}).changed


def test_a_node_whose_map_has_changed_is_reported(report: Report, site: Values, rendered: list[Values]) -> None:
    report.run(site, claims={"default": rendered})
    report.run({"own": site["shared"]}, inventory=set(site))
    page = report.text("nodes/own.html")
    assert "were rendered for another map of this node: training/other" in page and "•" not in page
    assert "another map" not in report.text("nodes/shared.html")


def test_unusable_boards_change_nothing(report: Report, site: Values, rendered: list[Values]) -> None:
    report.run(site, claims={"default": rendered})
    before = report.files()
    wrong: list[object] = [
        "pair",
        [{"name": "x"}],
        [{**rendered[0], "pairs": [["a", "b"]]}],
        [{**rendered[0], "boards": []}],
    ]
    for damaged_boards in wrong:
        with pytest.raises(Unusable, match=r"claims.default: this is not the `boards` that dra_render returns"):
            report.run(site, claims={"default": damaged_boards})
    assert report.files() == before
    path = report.folder / FILE
    path.write_text('{"format": 2, "sites": {}}')
    with pytest.raises(Unusable, match=r"a newer release of lanewise.dra wrote"):
        report.run(site)
    damaged = [json.dumps({"format": 1, "sites": {"default": boards}}) for boards in (3, *wrong)]
    for text in ("[", '{"format": 1}', '{"format": 1, "sites": 3}', *damaged):
        path.write_text(text)
        with pytest.raises(Unusable, match=r"claims.json is damaged: .*Remove it") as raised:
            report.run(site)
        assert "dra_render" not in str(raised.value), "the caller passed no claims"
    path.unlink()
    assert report.run(site).changed


def test_hostile_names_of_claims_are_escaped(report: Report, site: Values, rendered: list[Values]) -> None:
    evil = [{**rendered[0], "name": "<script>alert(1)</script>", "claim": '"><img src=x>/pair'}]
    report.run(site, claims={"default": evil})
    pages = [content.decode() for name, content in report.files().items() if name.endswith(".html")]
    assert any("&lt;script&gt;alert" in page for page in pages)
    assert not any("<script>alert" in page or "<img" in page for page in pages)
