# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The page about boards: its tables equal the results of compiler and allocator for machines and real nodes."""

from __future__ import annotations

import re
import typing as t
from pathlib import Path

import pytest
import yaml
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.engine import Engine
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import Site, compile_site
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.problems import Problems
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.allocator import Allocation, allocate
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.answers import Result
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offer import Offer
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offers import offers
from ansible_collections.lanewise.dra.tests.claims import recorded
from ansible_collections.lanewise.dra.tests.common.places import COLLECTION
from ansible_collections.lanewise.dra.tests.machines.description import names
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.probed import facts

cel = pytest.importorskip("cel_expr_python")

PAGE = COLLECTION / "docs" / "boards.md"
Values = dict[str, t.Any]
#: The columns by title, each with the keys of its group.
COLUMNS: list[tuple[str, Values]] = [
    ("pcie_root", {"align": "pcie_root"}),
    ("numa_node", {"align": "numa_node"}),
    ("nearest", {"align": "nearest"}),
    ("at_least: NODE", {"align": "nearest", "at_least": "NODE"}),
]


def drivers(machine: Values) -> Values:
    vendors = {machine["functions"][gpu["address"]]["vendor_id"] for gpu in machine["gpus"]}
    gpu = {"gpu.amd.com": {"version": "1.0.0"}} if "1002" in vendors else {"gpu.nvidia.com": {"version": "0.5.0"}}
    return {**gpu, "lanewise.dev": {"version": "1.0.0"}}


def pairs(machine: Values, group: Values, of: Values | None = None, offered: list[Offer] | None = None) -> str:
    """The number of pairs that the machine gives at a time, and the form of their claims.

    `of` are the machine's drivers; `offered` are its published devices, if they were recorded.
    """
    devices = [{"name": "gpu", "kind": "gpu"}, {"name": "nic", "kind": "rdma"}]
    of = drivers(machine) if of is None else of
    values: Values = {
        "dra_claims_drivers": of,
        "dra_claims_templates": [{"name": "pair", "namespace": "ml", "groups": [{**group, "devices": devices}]}],
        "dra_claims_allow_unreachable": True,
    }
    try:
        compiled_site = compile_site(values, {"node": machine})
    except Problems:
        return "-"
    number = _allocated_pairs(compiled_site, offers("node", machine, of) if offered is None else offered)
    form = f", {compiled_site.boards[0].form}" if compiled_site.boards else ""
    return f"{number}{form}" if number else "-"


def _allocated_pairs(compiled_site: Site, offered: list[Offer]) -> int:
    classes = {item["metadata"]["name"]: item for item in compiled_site.objects if item["kind"] == "DeviceClass"}
    [spec] = [item["spec"]["spec"] for item in compiled_site.objects if item["kind"] == "ResourceClaimTemplate"]
    held: list[Result] = []
    engine, number = Engine(), 0
    while isinstance(answer := allocate([spec], classes, offered, engine, held=held), Allocation):
        held += answer.results
        number += 1
    return number


def row(name: str) -> list[str]:
    machine = facts(name)
    return [str(len(machine["gpus"])), *(pairs(machine, group) for _title, group in COLUMNS)]


def table() -> str:
    head = ["machine", "GPUs", *(f"`{title}`" for title, _group in COLUMNS)]
    lines = [head, ["---"] * len(head), *([f"`{name}`", *row(name)] for name in names() if facts(name)["gpus"])]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def real_rows(folder: Path) -> list[str]:
    """The rows of real nodes: with DRANET as recorded, and with lanewise.dev instead of it."""
    rows = []
    gpu: Values = {"gpu.nvidia.com": {"version": "0.4.0"}}
    for name in (node for node in recorded.NODES if node != "aks-mi300x"):  # no driver published the GPUs of this node
        for overrides in ((), recorded.OVERRIDES) if name == "aks-gb300" else ((),):
            machine = recorded.facts_of(name, folder, overrides)
            for driver, version in (("dra.net", "1.4.0"), ("lanewise.dev", "1.0.0")):
                of = {**gpu, driver: {"version": version}}
                published = recorded.offers_of(name)
                if driver == "lanewise.dev":
                    published = [device for device in published if device.driver in gpu]
                    published += [offer for offer in offers(name, machine, of) if offer.driver == driver]
                cells = [pairs(machine, group, of, published) for _title, group in COLUMNS]
                with_overrides = " and overrides" if overrides else ""
                rows.append(f"| `{name}`, `{driver}`{with_overrides} | {len(machine['gpus'])} | {' | '.join(cells)} |")
    return rows


def rows_of_the_page() -> list[str]:
    text = PAGE.read_text(encoding="utf-8")
    found = [line for line in text.partition("## What each board gets")[2].splitlines() if line.startswith("| `")]
    assert found, "the page has no tables"
    return found


def test_the_table_of_example_machines_equals_the_computed_one() -> None:
    rows = [line for line in table().splitlines() if line.startswith("| `")]
    assert rows_of_the_page()[: len(rows)] == rows


def test_the_table_of_real_nodes_equals_the_computed_one(tmp_path: Path) -> None:
    rows = real_rows(tmp_path)
    assert rows_of_the_page()[-len(rows) :] == rows
    assert len(rows_of_the_page()) == len(rows) + len([name for name in names() if facts(name)["gpus"]])


def test_the_inventories_of_the_page_compile() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    compiled = 0
    for block in blocks:
        values = yaml.safe_load(block)
        if isinstance(values, dict) and "dra_claims_templates" in values:
            values.setdefault("dra_claims_drivers", drivers(facts("gb300")))
            compiled += len(compile_site(values, {"node": facts("gb300")}).objects) > 0
    assert compiled
