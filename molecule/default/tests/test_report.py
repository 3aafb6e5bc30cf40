# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The files that the site playbook wrote, read without code of the collection."""

from __future__ import annotations

import csv
import io
import json
import os

import pytest

REPORT = os.path.join(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"], "report")
INVENTORY = os.path.join(os.environ["MOLECULE_PROJECT_DIRECTORY"], "inventories", "example")


@pytest.fixture(name="site", scope="module")
def _site(host):
    """The facts of each host, as the report stores them."""
    listed = json.loads(host.file(f"{REPORT}/site.json").content_string)["nodes"]
    return {
        node["name"]: json.loads(host.file(f"{REPORT}/nodes/{node['file']}.json").content_string)["facts"]
        for node in listed
    }


def test_report_has_a_page_for_every_host(host, site):
    hosts = set(json.loads(host.check_output("ansible-inventory -i %s --list", INVENTORY))["_meta"]["hostvars"])
    assert len(hosts) >= 15
    assert set(site) == hosts
    for name in hosts:
        assert host.file(f"{REPORT}/nodes/{name}.html").size > 1000


def test_this_machine_is_read_from_its_kernel(host, site):
    facts = site["localhost"]
    assert {nic["address"] for nic in facts["nics"]} <= set(host.check_output("ls /sys/bus/pci/devices").split())
    names = {interface["name"] for interface in facts["interfaces"]}
    assert names == set(host.check_output("ls /sys/class/net").split()) - {"bonding_masters"}
    assert facts["system"]["kernel"] == host.check_output("uname -r")


def test_each_gpu_of_the_hgx_node_has_a_rail_and_a_nearest_nic(site):
    facts = site["h100-01"]
    assert [gpu["rail"] for gpu in facts["gpus"]] == list(range(8))
    assert {gpu["nearest_nics"]["level"] for gpu in facts["gpus"]} == {"PIX"}


def test_the_degraded_node_has_findings(site):
    assert not [finding for finding in site["h100-01"]["findings"] if finding["severity"] == "error"]
    assert {"link-degraded", "rdma-port-down"} <= {finding["id"] for finding in site["h100-04"]["findings"]}


def test_node_with_a_missing_card_is_the_outlier(host, site):
    shapes = {name: site[name]["fingerprint"] for name in site if name.startswith("h100-")}
    assert [name for name, shape in shapes.items() if shape != shapes["h100-01"]] == ["h100-05"]
    assert "h100-05" in host.file(f"{REPORT}/index.html").content_string.partition('id="findings"')[0]


def test_overridden_locality_is_used_and_reported(site):
    facts = site["azure-01"]
    assert {gpu["nearest_nics"]["level"] for gpu in facts["gpus"]} == {"PIX"}
    assert "override-applied" in {finding["id"] for finding in facts["findings"]}


def test_csv_has_the_same_facts(host, site):
    rows = list(csv.DictReader(io.StringIO(host.file(f"{REPORT}/devices.csv").content_string)))
    gpus = [row for row in rows if row["kind"] in ("gpu", "accelerator")]
    assert len(gpus) == sum(len(facts["gpus"]) for facts in site.values())
