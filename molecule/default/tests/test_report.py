# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the site playbook left behind, read with nothing of the collection's own."""

from __future__ import annotations

import csv
import io
import json
import os

import pytest

REPORT = os.path.join(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"], "report")


@pytest.fixture(name="site", scope="module")
def _site(host):
    return json.loads(host.file(f"{REPORT}/site.json").content_string)


def test_report_has_a_page_for_every_host(host, site):
    inventory = json.loads(host.check_output(f"ansible-inventory -i {os.environ['MOLECULE_INVENTORY_FILE']} --list"))
    hosts = set(inventory["_meta"]["hostvars"])
    assert len(hosts) >= 15
    assert set(site["nodes"]) == hosts
    for name in hosts:
        assert host.file(f"{REPORT}/nodes/{name}.html").size > 1000


def test_this_machine_is_read_from_its_kernel(host, site):
    facts = site["nodes"]["localhost"]["facts"]
    listed = host.check_output("ls /sys/bus/pci/devices").split()
    nics = {nic["address"] for nic in facts["nics"]}
    assert nics <= set(listed)
    names = {interface["name"] for interface in facts["interfaces"]}
    assert names == set(host.check_output("ls /sys/class/net").split()) - {"bonding_masters"}
    assert facts["system"]["kernel"] == host.check_output("uname -r")


def test_pairs_of_the_hgx_node(site):
    facts = site["nodes"]["h100-01"]["facts"]
    assert [gpu["rail"] for gpu in facts["gpus"]] == list(range(8))
    assert {gpu["nearest_nics"]["level"] for gpu in facts["gpus"]} == {"PIX"}


def test_degraded_node_is_found(site):
    healthy, degraded = (site["nodes"][name]["facts"] for name in ("h100-01", "h100-04"))
    assert not [one for one in healthy["findings"] if one["severity"] == "error"]
    assert {"link-degraded", "rdma-port-down"} <= {one["id"] for one in degraded["findings"]}


def test_csv_tells_the_same(host, site):
    rows = list(csv.DictReader(io.StringIO(host.file(f"{REPORT}/devices.csv").content_string)))
    gpus = [row for row in rows if row["kind"] in ("gpu", "accelerator")]
    assert len(gpus) == sum(len(node["facts"]["gpus"]) for node in site["nodes"].values())
