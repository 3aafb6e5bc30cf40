# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The files that the playbooks of day2.yml wrote, read without code of the collection."""

from __future__ import annotations

import json
import os
import re

import pytest

FOLDER = os.path.join(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"], "day2")
OLD = f"{FOLDER}/machines/hgx-h100/sys"


def read(host, path):
    return json.loads(host.file(f"{FOLDER}/{path}").content_string)


@pytest.mark.parametrize(
    ("folder", "verdict", "nodes"),
    [
        (".", "drifted", {"h100-01": "drifted"}),
        ("no-drift", "no drift", {"sriov-01": "no drift"}),
        ("unknown", "unknown", {"h100-01": "no drift", "h100-05": "unknown"}),
    ],
)
def test_drift_is_reported_as_json_and_as_a_page(host, folder, verdict, nodes):
    drift = read(host, f"{folder}/drift.json")
    assert drift["verdict"] == verdict
    assert {name: node["state"] for name, node in drift["nodes"].items()} == nodes
    page = host.file(f"{FOLDER}/{folder}/drift.html").content_string
    shown = re.findall(r'<h3>(\S+) <span class="pill state">([^<]+)<', page)
    assert dict(shown) == {name: state for name, state in nodes.items() if state != "no drift"}


def test_the_bundle_describes_nodes_without_their_addresses(host):
    (bundle,) = host.check_output(f"ls {FOLDER}/support-*.tar.gz").split()
    assert host.file(bundle).mode == 0o600
    names = host.check_output(f"tar --list --file {bundle}").split()
    for node in ("h100-01", "localhost"):
        assert [name for name in names if name.endswith(f"nodes/{node}.topology.json")]
    text = host.check_output(f"tar --extract --to-stdout --file {bundle}").lower()
    assert "0000:59:00.0" in text and "connectx-7" in text  # the card is identified
    assert "=== ip -details link" in text  # of this machine
    command = f"cat {OLD}/class/net/*/address /sys/class/net/*/address; cat {OLD}/class/infiniband/*/node_guid"
    addresses = {word for word in host.check_output(command).lower().split() if set(word) - set("0:")}
    assert len(addresses) > 8 and not [address for address in addresses - {"ff:ff:ff:ff:ff:ff"} if address in text]
    serial = read(host, "replaced/h100-02.json")["old"]["serial"]
    assert serial and serial.lower() not in text


def test_the_record_contains_the_old_and_the_new_card(host):
    record = read(host, "replaced/h100-02.json")
    assert (record["state"], record["host"]) == ("done", "h100-02")
    assert record["card"]["serial"] == "MT2646X00001" != record["old"]["serial"]
    for card, tree in ((record["old"], "hgx-h100"), (record["card"], "exchanged")):
        (port, _other) = card["functions"]
        (interface,) = port["interfaces"]
        path = f"{FOLDER}/machines/{tree}/sys/bus/pci/devices/{port['address']}/net/{interface['name']}/address"
        assert host.file(path).content_string.strip() == interface["mac"]


def test_the_report_has_the_new_card(host):
    facts = read(host, "nodes/h100-02.json")["facts"]
    assert facts["functions"]["0000:59:00.0"]["vpd"]["serial_number"] == "MT2646X00001"
