# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The report's files: their contents, when they change, and the effect of hostile or broken facts.

It has more than 500 lines because all tests read the report of the same site.
"""

from __future__ import annotations

import copy
import csv
import io
import json
import os
import random
import re
import typing as t

import html5lib
import pytest
from ansible_collections.lanewise.dra.plugins.plugin_utils.report_compare import differences, group_peers
from ansible_collections.lanewise.dra.plugins.plugin_utils.report_drawing import draw
from ansible_collections.lanewise.dra.plugins.plugin_utils.report_facts import View, clean, natural, read_facts
from ansible_collections.lanewise.dra.plugins.plugin_utils.report_nodes import Node
from ansible_collections.lanewise.dra.plugins.plugin_utils.report_store import file_name

from .conftest import without_gpu

XHTML = "{http://www.w3.org/1999/xhtml}"
EVIL = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7*7 }}{% raw %}\u202e\x00</svg>"


def parse(text: str) -> t.Any:
    """Parse strictly: html5lib raises on the first error of the document."""
    return html5lib.HTMLParser(strict=True).parse(text)


def rows(report: t.Any, name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(report.text(name))))


def test_every_page_is_valid_and_loads_nothing(built):
    pages = {name: content.decode() for name, content in built.files().items() if name.endswith(".html")}
    assert len(pages) == len(built.site.store.hosts()) + 1
    for name, text in pages.items():
        document = parse(text)
        ids = [element.get("id") for element in document.iter() if element.get("id")]
        assert len(ids) == len(set(ids)), name
        assert not list(document.iter(f"{XHTML}link"))[1:], "only the icon"
        for element in document.iter():
            for key in ("src", "href", "action", "data", "poster", "srcset"):
                value = element.get(key)
                assert value is None or value == "data:," or re.fullmatch(r"(\.\./)?[\w./%-]*(#[\w-]+)?", value), value
            assert not any(str(key).startswith("on") or key == "style" for key in element.attrib)
        assert "@import" not in text and "url(" not in text
        for target in re.findall(r'href="#([\w-]+)"', text):
            assert target in ids, (name, target)
        headings = [int(e.tag[-1]) for e in document.iter() if re.fullmatch(re.escape(XHTML) + "h[1-6]", str(e.tag))]
        assert headings[0] == 1 and headings.count(1) == 1
        assert all(after - before <= 1 for before, after in zip(headings, headings[1:]))


def test_links_lead_to_files(built):
    files = built.files()
    for name, content in files.items():
        if name.endswith(".html"):
            for target in re.findall(r'href="([^"#][^"]*)"', content.decode()):
                if target != "data:,":
                    path = (
                        target.removeprefix("../")
                        if target.startswith("../")
                        else ("nodes/" + target if name.startswith("nodes/") else target)
                    )
                    assert path in files, (name, target)


def test_same_facts_write_the_same_bytes(built, fleet, report):
    report.run(fleet, play={*fleet, "h100-11"}, unreachable={"h100-11"})
    assert report.site.changed
    first = report.files()
    assert first == built.files()
    report.run(copy.deepcopy(fleet), play={*fleet, "h100-11"}, unreachable={"h100-11"}, now="2027-01-01T00:00:00Z")
    assert not report.site.changed and not report.site.diff
    assert report.files() == first


def test_key_order_of_facts_does_not_matter(fleet, report):
    report.run(fleet)
    reordered = {host: dict(reversed(list(facts.items()))) for host, facts in reversed(list(fleet.items()))}
    assert not report.run(reordered).changed


def test_an_outlier_is_described(built):
    text = built.text()
    start = text.index('id="outliers"')
    assert "1 GPU fewer (7 instead of 8) under switch 0000:46:00.0, NUMA node 0: NVIDIA H100 80GB HBM3" in text[start:]
    assert "GPU-NIC groups: 7 × PIX instead of 8 × PIX" in text
    assert "Differs from its peers" in built.text("nodes/h100-09.html")
    assert "Differs from its peers" not in built.text("nodes/h100-01.html")
    assert built.result["counts"]["outliers"] == 1
    assert any(line.startswith("outlier h100-09: 1 GPU fewer") for line in built.result["summary"])


def list_items(page: t.Any, heading: str) -> list[str]:
    """The outer list items of the findings with the id `heading` on the fleet page, as text."""
    (details,) = (
        entry for entry in page.iter(f"{XHTML}details") if heading in [e.text for e in entry.iter(f"{XHTML}strong")]
    )
    (items,) = details.findall(f"{XHTML}ul")
    return [" ".join("".join(item.itertext()).split()) for item in items]


def test_the_fleet_page_shows_each_nodes_own_summary_of_a_finding(machines, report):
    def node(*texts: tuple[str, str]) -> dict[str, t.Any]:
        facts = copy.deepcopy(machines["hgx-h100"])
        facts["findings"] = [
            {"id": "slow", "severity": "warning", "summary": summary, "action": action} for summary, action in texts
        ]
        return facts

    one_gpu, two_gpus, link = ("1 GPU is slow", "reseat"), ("2 GPUs are slow", "reseat"), ("the link is slow", "reseat")
    report.run({"a": node(one_gpu), "b": node(two_gpus), "c": node(one_gpu), "d": node(link, link, one_gpu)})
    text = report.text()
    assert list_items(parse(text), "slow") == [
        "a, c 1 GPU is slow",
        "b 2 GPUs are slow",
        "d 1 GPU is slow the link is slow (2)",
    ]
    assert '1 GPU is slow <span class="soft">· and 2 others</span>' in text and text.count("reseat") == 1
    report.run({"a": node(one_gpu), "b": node(one_gpu, one_gpu), "c": node(one_gpu), "d": node(one_gpu)})
    text = report.text()
    assert list_items(parse(text), "slow") == ["a", "b (2)", "c", "d"] and text.count("1 GPU is slow") == 1
    report.run({"a": node(one_gpu), "b": node(("1 GPU is slow", "wait")), "c": node(one_gpu), "d": node(one_gpu)})
    assert list_items(parse(report.text()), "slow") == [
        "a, c, d 1 GPU is slow What to do: reseat",
        "b 1 GPU is slow What to do: wait",
    ]
    report.run({f"n{number}": node((f"{number} are slow", "reseat")) for number in range(101)})
    items = list_items(parse(report.text()), "slow")
    assert len(items) == 101 and items[-1] == "and the findings of other nodes, see findings.csv"


def test_without_a_majority_there_is_no_outlier(machines, report):
    report.run({"a": machines["hgx-h100"], "b": without_gpu(machines["hgx-h100"], 0)})
    assert report.result["counts"]["outliers"] == 0
    assert "so it is unknown which one is right" in report.text()


def node_like(host: str, hardware: str, gpus: int, fingerprint: str) -> Node:
    gpu_model = "H100" if gpus else ""
    return Node(host, host, host, hardware=hardware, gpu_model=gpu_model, gpus=gpus, fingerprint=fingerprint)


def test_node_that_lost_all_gpus_is_compared_with_gpu_nodes():
    members = [node_like(f"n{i}", "X", 8, "full") for i in range(4)] + [node_like("n9", "X", 0, "bare")]
    (group,) = group_peers(members)
    assert group.outliers == ["n9"]
    members += [node_like(f"c{i}", "X", 0, "bare") for i in range(3)]
    assert len(group_peers(members)) == 2, "so many nodes without GPUs are not broken"


@pytest.mark.parametrize(
    ("change", "compared"),
    [
        ({}, True),
        ({"product": None, "board": None}, True),  # CPU and GPU models suffice to compare them
        ({"product": "Standard PC (Q35 + ICH9, 2009)", "cpu_model": None}, False),
        ({"product": None, "board": None, "cpu_model": None}, False),
    ],
)
def test_nodes_are_compared_only_if_their_product_or_cpu_is_the_same(machines, report, change, compared):
    facts = {f"a{number}": copy.deepcopy(machines["hgx-h100"]) for number in range(4)}
    facts["b0"] = without_gpu(machines["hgx-h100"], 3)
    for entry in facts.values():
        entry["system"].update(change)
    report.run(facts)
    assert report.result["counts"]["outliers"] == int(compared)
    assert "it is unknown which one is right" not in report.text()


def test_another_vendors_machine_of_the_same_name_is_not_compared(machines, report):
    facts = {f"a{number}": copy.deepcopy(machines["hgx-h100"]) for number in range(4)}
    facts["b0"] = without_gpu(machines["hgx-h100"], 3)
    facts["b0"]["system"]["vendor"] = "Other"
    report.run(facts)
    assert report.result["counts"]["outliers"] == 0


def test_driver_that_a_file_does_not_state_is_not_missing(machines, report):
    facts = copy.deepcopy(machines["hgx-h100"])
    facts["source"]["kind"] = "nccl_xml"
    for entry in (*facts["nics"], *facts["gpus"], *facts["functions"].values()):
        entry["driver"] = None
    report.run({"planned": facts, "real": {**copy.deepcopy(facts), "source": {"kind": "sysfs"}}})
    planned, real = report.text("nodes/planned.html"), report.text("nodes/real.html")
    assert "driver not stated" in planned and "no driver" not in planned
    assert "no driver" in real and "driver not stated" not in real


def test_labels_of_a_node_are_unique(machines):
    for facts in machines.values():
        facts = copy.deepcopy(facts)
        for entry in (*facts["nics"], *facts["nvme"]):
            entry.update({name: [] for name in ("interfaces", "rdma_devices", "controllers") if name in entry})
        labels = [device.label for device in View(read_facts(facts)).devices]
        assert len(set(labels)) == len(labels)


def test_facts_without_functions_are_not_reported_as_healthy(report):
    report.run({"bare": {"findings": [], "system": {"product": "X"}}})
    for name in ("index.html", "nodes/bare.html"):
        text = report.text(name)
        assert "the facts contain no PCI function" in text and 'class="ok">No findings' not in text


def test_long_cpu_lists_do_not_stretch_the_drawing(machines):
    facts = copy.deepcopy(machines["hgx-h100"])
    for node in facts["numa_nodes"]:
        node["cpus"] = ",".join(str(number) for number in range(node["id"], 256, 2))
    view = View(read_facts(facts))
    svg = draw(view, "x")
    assert int(re.search(r'width="(\d+)"', svg).group(1)) <= 2 * 1180
    assert "…" in svg and view.topology.numa_nodes[0].cpus[:300] in svg


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            lambda f, a: f["functions"][a]["link"].update(width=8),
            "GPU 2 (0000:38:00.0): link Gen5 x8 instead of Gen5 x16",
        ),
        (lambda f, a: f["gpus"][2].update(numa_node=1), "GPU 2 (0000:38:00.0): NUMA node 1 instead of 0"),
        (lambda f, a: f["functions"][a]["bridges"].__delitem__(slice(1, None)), "behind 1 bridges instead of 3"),
        (lambda f, a: f["gpus"][2].update(model="L40S"), "model L40S instead of NVIDIA H100 80GB HBM3"),
        (lambda f, a: f["numa_nodes"].pop(), "1 NUMA nodes instead of 2"),
    ],
)
def test_differences_are_described(machines, change, expected):
    facts = copy.deepcopy(machines["hgx-h100"])
    change(facts, facts["gpus"][2]["address"])
    found = differences(View(read_facts(facts)), View(read_facts(machines["hgx-h100"])))
    assert any(expected in line for line in found), found
    assert differences(View(read_facts(facts)), View(read_facts(facts))) == []


def test_renumbered_buses_are_not_missing_devices(machines):
    moved = json.loads(json.dumps(machines["hgx-h100"]).replace("0000:3", "0000:7"))
    found = differences(View(read_facts(moved)), View(read_facts(machines["hgx-h100"])))
    assert not any("fewer" in line or "more under" in line for line in found), found
    assert any("another PCI address" in line for line in found)


def test_limit_keeps_the_other_nodes(fleet, machines, report):
    report.run(fleet, play={*fleet, "h100-11"}, unreachable={"h100-11"})
    before = report.files()
    site = report.run({"h100-02": machines["degraded"]}, inventory={*fleet, "h100-11"}, now="2026-05-05T05:05:05Z")
    assert site.changed and report.result["counts"]["probed"] == len(fleet)
    after = report.files()
    written = {name for name in after if after[name] != before.get(name)}
    assert written == {
        "index.html",
        "site.json",
        "nodes.csv",
        "devices.csv",
        "findings.csv",
        "nodes/h100-02.html",
        "nodes/h100-02.json",
    }
    assert [row["status"] for row in rows(report, "nodes.csv") if row["node"] == "h100-11"] == ["unreachable"]
    changed = {row["node"]: row["facts_changed"] for row in rows(report, "nodes.csv")}
    assert changed["h100-02"] == "2026-05-05T05:05:05Z" and changed["h100-03"] == "2026-01-02T03:04:05Z"


def test_an_unreachable_node_keeps_its_facts_with_a_note(fleet, report):
    report.run(fleet)
    rest = {host: facts for host, facts in fleet.items() if host != "h100-03"}
    report.run(rest, play=set(fleet), unreachable={"h100-03"})
    assert "Everything below is from an earlier run" in report.text("nodes/h100-03.html")
    assert "unreachable: h100-03" in report.result["summary"]
    report.run(fleet)
    assert "earlier run" not in report.text("nodes/h100-03.html")
    assert report.result["counts"]["absent"] == 0


def test_prune_removes_pages_of_missing_hosts_and_no_other_files(fleet, report):
    report.run(fleet)
    (report.folder / "nodes" / "notes.txt").write_text("not ours")
    rest = {host: facts for host, facts in fleet.items() if host != "vmd-1"}
    report.run(rest, prune=False)
    assert not report.site.changed and (report.folder / "nodes/vmd-1.html").exists()
    report.run(rest)
    assert "- vmd-1: no longer in the inventory" in report.site.diff
    assert not list(report.folder.glob("nodes/vmd-1.*")) and "vmd-1" not in report.text()
    assert (report.folder / "nodes" / "notes.txt").exists()


def test_nodes_of_another_inventory_are_not_dropped(fleet, report):
    first = {host: facts for host, facts in fleet.items() if host != "vmd-1"}
    report.run(first, source="/srv/first.yml")
    report.run({"vmd-1": fleet["vmd-1"]}, source="/srv/second.yml")
    assert report.result["counts"]["nodes"] == len(fleet)
    assert report.result["summary"][-2].startswith("kept, of other inventories: ")
    kept = dict(list(first.items())[1:])
    report.run(kept, source="/srv/first.yml")
    assert report.result["summary"][-3] == f"dropped, not in this inventory: {next(iter(first))}"
    assert report.result["summary"][-2] == "kept, of other inventories: vmd-1"
    before = report.files()
    assert not report.run(kept, source="/srv/first.yml").changed and report.files() == before


def test_given_nodes_belong_to_the_inventory_of_their_run(fleet, report):
    """Nodes that are given as an argument need not be in an inventory."""
    report.run({"vmd-1": fleet["vmd-1"]}, inventory={"localhost"}, source="/srv/first.yml")
    other = {"h100-01": fleet["h100-01"]}
    report.run(other, inventory=set(other), source="/srv/second.yml")
    assert report.result["summary"][-2] == "kept, of other inventories: vmd-1" and "vmd-1" in report.text()
    report.run({}, inventory={"localhost"}, source="/srv/first.yml")
    assert report.result["summary"][-3] == "dropped, not in this inventory: vmd-1"
    assert report.result["summary"][-2] == "kept, of other inventories: h100-01"


def test_nodes_without_facts_keep_those_of_an_earlier_run(fleet, report):
    """Their hosts need not be in the inventory: the caller may name them in `nodes`, `unreachable` or `failed`."""
    hosts = {"h100-01", "h100-02", "vmd-1"}
    report.run({host: fleet[host] for host in hosts}, inventory={"localhost"})
    before = report.files()
    report.run({}, play=hosts - {"vmd-1"}, inventory={"localhost"})
    assert "dropped, not in this inventory: vmd-1" in report.result["summary"]
    assert report.result["counts"]["probed"] == 2 and report.result["counts"]["absent"] == 2
    after = report.files()
    assert all(after[f"nodes/{host}.json"] == before[f"nodes/{host}.json"] for host in hosts - {"vmd-1"})


def test_check_mode_predicts_the_changes_and_writes_nothing(fleet, machines, report):
    assert report.run(fleet, dry=True).changed and not report.folder.exists()
    report.run(fleet)
    before = report.files()
    assert not report.run(fleet, dry=True).changed
    changed = {**fleet, "h100-01": machines["degraded"]}
    planned = report.run(changed, dry=True)
    assert planned.changed and report.files() == before
    assert report.run(changed).diff == planned.diff
    rest = {host: facts for host, facts in changed.items() if host != "vmd-1"}
    assert report.run(rest, dry=True).changed and (report.folder / "nodes/vmd-1.json").exists()


def test_the_diff_is_short_and_describes_the_change(fleet, machines, report):
    report.run(fleet)
    report.run({**fleet, "h100-01": machines["degraded"], "h100-02": without_gpu(machines["hgx-h100"], 0)})
    text = "\n".join(report.site.diff)
    assert "~ h100-01: NIC mlx5_1 0000:29:00.0: link Gen5 x8 instead of Gen5 x16" in text
    assert "+ h100-01: finding: error link-degraded" in text
    assert "- h100-02: GPU 0 0000:18:00.0 NVIDIA H100 80GB HBM3" in text
    assert len(report.site.diff) < 40


def test_new_templates_or_title_rewrite_pages(fleet, report, tmp_path):
    report.run(fleet)
    report.run(fleet, title="Another")
    assert report.site.changed and report.site.diff == ["~ pages written again; the facts are the same"]
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "base.html.j2").write_text("own page: {% block main %}{% endblock %}")
    report.run(fleet, title="Another", templates=[str(tmp_path / "own")])
    assert report.text().startswith("own page:") and report.text("nodes/vmd-1.html").startswith("own page:")


def test_damaged_or_missing_pages_are_written_again(fleet, report):
    report.run(fleet)
    good = report.files()
    (report.folder / "nodes/h100-01.html").write_text("cut off")
    (report.folder / "nodes/h100-02.html").unlink()
    (report.folder / "index.html").unlink()
    assert report.run(fleet).changed and report.files() == good


def test_an_interrupted_run_leaves_complete_files(fleet, machines, report, monkeypatch):
    report.run(fleet)
    good = report.files()
    real, calls = os.replace, []

    def stop(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(os, "replace", stop)
    newer = {**fleet, **{f"h100-{n:02}": machines["degraded"] for n in range(1, 4)}}
    with pytest.raises(KeyboardInterrupt):
        report.run(newer)
    monkeypatch.undo()
    for name, content in report.files().items():
        if name.endswith(".html"):
            parse(content.decode())
    assert report.text() == good["index.html"].decode()
    report.run(newer)
    assert not [name for name in report.files() if name.endswith(".tmp")]
    other = dict(report.files())
    assert not report.run(newer).changed and report.files() == other


def test_foreign_and_corrupt_stored_files_of_other_hosts_are_not_changed(fleet, report):
    report.run(fleet)
    good = report.text("nodes/h100-01.json")
    for name, text in {"mine.json": "{}", "h100-01.json": '{"format": 1', "bad.json": "\x00\xff"}.items():
        (report.folder / "nodes" / name).write_text(text)
    report.run({host: facts for host, facts in fleet.items() if host != "h100-01"})
    warnings = report.site.store.warnings
    assert len(warnings) == 3 and all(text.endswith("not a stored node, so it was left unchanged") for text in warnings)
    assert report.text("nodes/mine.json") == "{}" and report.text("nodes/h100-01.json") == '{"format": 1'
    report.run(fleet)
    (replaced,) = (text for text in report.site.store.warnings if "h100-01" in text)
    assert replaced.endswith("nodes/h100-01.json: not a stored node, so this run's facts replace it")
    assert report.text("nodes/h100-01.json") == good and report.text("nodes/mine.json") == "{}"


def evil(value: t.Any) -> t.Any:
    """The same facts with hostile text in every string that is not an address, a level or a kind."""
    if isinstance(value, dict):
        kept = ("address", "kind", "root_complex", "physfn", "severity", "level", "bridges", "devices", "levels")
        return {key: item if key in kept else evil(item) for key, item in value.items()}
    if isinstance(value, list):
        return [evil(item) for item in value]
    return EVIL if isinstance(value, str) else value


def test_hostile_text_stays_text(machines, report):
    host = "<script>alert('host')</script>"
    report.run({host: evil(machines["sriov"]), "b": evil(machines["degraded"])}, title=EVIL)
    pages = [name for name in report.files() if name.endswith(".html")]
    assert len(pages) == 3
    for name in pages:
        document = parse(report.text(name))
        assert len(list(document.iter(f"{XHTML}script"))) == 1, name
        assert not list(document.iter(f"{XHTML}img"))
        text = "".join(document.itertext())
        assert "alert(1)" in text and "{{ 7*7 }}" in text and "\u202e" not in report.text(name)
    assert file_name(host) + ".html" in {name.removeprefix("nodes/") for name in pages}


def test_spreadsheet_formulas_are_text(machines, report):
    facts = copy.deepcopy(machines["hgx-h100"])
    facts["system"]["product"] = "=HYPERLINK(0)"
    facts["gpus"][0]["model"] = '@x,"y"\nz'
    report.run({"a": facts})
    assert rows(report, "nodes.csv")[0]["product"] == "'=HYPERLINK(0)"
    assert rows(report, "devices.csv")[0]["model"] == '\'@x,"y" z'


def test_tables_contain_the_facts(built, fleet):
    nodes = rows(built, "nodes.csv")
    assert [row["node"] for row in nodes] == sorted({*fleet, "h100-11"}, key=natural)
    for row in nodes:
        if row["node"] in fleet:
            facts = fleet[row["node"]]
            assert int(row["gpus"]) == len(facts["gpus"]) and row["fingerprint"] == facts["fingerprint"]
    devices = rows(built, "devices.csv")
    for host, facts in fleet.items():
        mine = {row["address"]: row for row in devices if row["node"] == host}
        assert {g["address"] for g in facts["gpus"]} == {a for a, row in mine.items() if row["kind"] == "gpu"}
        pfs = {n["address"] for n in facts["nics"] if n["physfn"] not in facts["functions"]}
        assert pfs == {a for a, row in mine.items() if row["kind"] == "nic"}
    found = rows(built, "findings.csv")
    assert len(found) == sum(len(facts["findings"]) for facts in fleet.values())
    site = json.loads(built.text("site.json"))
    assert site["counts"] == built.result["counts"] and len(site["nodes"]) == len(nodes)


def test_stored_facts_are_the_facts(built, fleet):
    for host, facts in fleet.items():
        assert json.loads(built.text(f"nodes/{file_name(host)}.json"))["facts"] == facts


def test_file_names_are_safe_unique_and_stable():
    hosts = [
        "gpu01",
        "GPU01",
        "a/b",
        "a\\b",
        "..",
        ".",
        "",
        "../../etc/passwd",
        "nœud",
        "ünï",
        "x" * 300,
        "a b",
        "-a",
        "con.",
        "host.example.org",
        "a..b",
        "\udcff",
    ]
    names = [file_name(host) for host in hosts]
    assert len(set(names)) == len(hosts) and len({name.lower() for name in names}) == len(hosts)
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,99}", name) and ".." not in name for name in names)
    assert names[0] == "gpu01" and names[14] == "host.example.org"


def test_degraded_links_and_vfs_are_drawn(machines):
    svg = draw(View(read_facts(machines["degraded"])), "x")
    assert svg.count("x8 of x16") >= 2 and 'class="chip nic degraded"' in svg and "Degraded links:" in svg
    assert "Gen4 of Gen5" in svg
    healthy = draw(View(read_facts(machines["hgx-h100"])), "x")
    assert "degraded" not in healthy and healthy.count('class="switch"') == 8
    sriov = draw(View(read_facts(machines["sriov"])), "x")
    assert "128 VFs" in sriov and sriov.count('class="chip') == 8


def test_unknown_locality_is_not_drawn_into_a_numa_node(machines):
    svg = draw(View(read_facts(machines["vmd"])), "x")
    assert "Locality unknown" in svg and "The NUMA node of 6 devices is unknown" in svg
    assert svg.index("Locality unknown") < svg.index("GPU 0") < svg.index("NUMA node 0:")


@pytest.mark.parametrize(
    "name",
    [
        "azure-vm",
        "cpu-rdma",
        "degraded",
        "dgx-a100",
        "epyc-nps4",
        "gb200",
        "gb300",
        "hgx-b200",
        "hgx-h100",
        "mi300x",
        "sriov",
        "vmd",
    ],
)
def test_every_device_is_drawn_once_and_nothing_overlaps(machines, name):
    """Every device is drawn once, inside the picture, and no two chips share a pixel."""
    view = View(read_facts(machines[name]))
    svg = draw(view, "x")
    width, height = map(int, re.search(r'width="(\d+)" height="(\d+)"', svg).groups())
    chip = r'<g class="chip[^>]*>\n(?:<title>[^<]*</title>\n)?<rect x="(\d+)" y="(\d+)" width="(\d+)" height="(\d+)"'
    chips = [tuple(map(int, found)) for found in re.findall(chip, svg)]
    stacked = [int(found) for found in re.findall(r">(\d+) × ", svg)]
    assert len(chips) - len(stacked) + sum(stacked) == len(view.devices)
    for number, (x, y, w, h) in enumerate(chips):
        assert 0 <= x and x + w <= width and 0 <= y and y + h <= height
        for a, b, c, d in chips[:number]:
            assert x + w <= a or a + c <= x or y + h <= b or b + d <= y


def spoil(value: t.Any, dice: random.Random) -> t.Any:
    """The same facts with some values replaced by ones of another type, or left out."""
    if dice.random() < 0.04:
        odd = [None, "", "x" * 5000, "ünï→\u202e", -1, 1e300, float("nan"), True, [], {}, [None], {"a": 1}]
        return dice.choice(odd)
    if isinstance(value, dict):
        return {key: spoil(item, dice) for key, item in value.items() if dice.random() > 0.02}
    if isinstance(value, list):
        return [spoil(item, dice) for item in value]
    return value


@pytest.mark.long
def test_broken_facts_still_make_a_report(machines, report):
    dice = random.Random(7)
    names = sorted(machines)
    facts = {f"n{n}": spoil(machines[names[n % len(names)]], dice) for n in range(96)}
    facts = {host: found for host, found in facts.items() if isinstance(found, dict)}
    facts["empty"] = {}
    facts["nulls"] = dict.fromkeys(machines["vmd"])
    report.run(facts)
    for name in report.files():
        if name.endswith(".html"):
            parse(report.text(name))
    assert not report.run(facts).changed


def test_text_is_clipped_and_cleaned():
    assert clean("a" * 1000).endswith("…") and len(clean("a" * 1000)) == 400
    assert clean("a\u202eb\x1b[31m\tc\udcff") == "a\ufffdb\ufffd[31m c\ufffd"


@pytest.mark.long
def test_a_thousand_nodes_fit_on_a_small_page(machines, report):
    """A second run writes nothing, and the page stays below 2 MB; tests/bench measures the time."""
    names = sorted(machines)
    facts = {}
    for number in range(1000):
        found = copy.copy(machines[names[number % len(names)]])
        found["system"] = {**found["system"], "bios_version": f"1.{number}"}
        if number % 50 == 3 and found["gpus"]:
            found = without_gpu(found, 0)
            found["fingerprint"] = f"{number:016x}"
        facts[f"node{number:04}"] = found
    report.run(facts)
    assert not report.run(facts).changed
    assert len(report.text().encode()) < 2_000_000
