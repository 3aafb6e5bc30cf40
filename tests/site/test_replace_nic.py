# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Replacing a card, on recorded machines: the report before the replacement, and the requirements for the new card."""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible_collections.lanewise.dra.plugins.module_utils.topology import model
from ansible_collections.lanewise.dra.plugins.module_utils.topology.diagnosis.diagnose import diagnose
from ansible_collections.lanewise.dra.plugins.module_utils.topology.probe import probe
from ansible_collections.lanewise.dra.plugins.module_utils.topology.publish import DRIVER, publication
from ansible_collections.lanewise.dra.plugins.plugin_utils import replacement
from ansible_collections.lanewise.dra.plugins.plugin_utils.card import (
    Card,
    card_at,
    cards,
    find,
    function_addresses,
    same_card,
)
from ansible_collections.lanewise.dra.tests.machines.builder import build
from ansible_collections.lanewise.dra.tests.site.plays import COLLECTION, run_playbook

pytestmark = pytest.mark.long

SLOT, STORAGE, RAIL, OTHER_RAIL = "9", "0000:59:00.0", "0000:49:00.0", "0000:da:00.0"
#: A card of the same model with another serial number. Its MAC addresses and GUIDs have another prefix.
NEW: dict[str, t.Any] = {"oui": "a0:88:c3", "vpd": {"SN": "MT2646X00001"}}
#: The machine with an empty port instead of the card at RAIL.
WITHOUT_RAIL: dict[str, t.Any] = {
    "like": "hgx-h100",
    "roots": {
        "0000:45": {
            "use": [],
            "01.0 spr-root-port": {"00.0 pex-usp": {"00.0 pex-dsp": {"00.0 h100-sxm": {}}, "01.0 pex-dsp": {}}},
        }
    },
}
RULES = [
    {"name": "rails", "select": {"near_gpu": "PIX"}, "num_vfs": 4},
    {"name": "storage", "select": {"slot": [SLOT]}, "mtu": 9000},
]


class Site:
    """A site with a node whose machine tree can be exchanged, and another node that `--limit` excludes."""

    def __init__(self, folder: Path, machine: str) -> None:
        self.folder = folder
        self.machine = machine
        self.variables: dict[str, t.Any] = {"fabric_nics": RULES}
        self.tree = self.exchange({})

    def exchange(self, override: dict[str, t.Any], machine: str | dict[str, t.Any] = "") -> Path:
        """Replace the node's tree with one of the machine that has other options for some PCI addresses. Returns it."""
        base = machine if isinstance(machine, dict) else {"like": machine or self.machine}
        number = len(list(self.folder.glob("tree*")))
        # made-up serial numbers and addresses are derived from the name, so all others stay the same
        self.tree = build({**base, "name": self.machine, "override": override}, self.folder / f"tree{number}")
        return self.tree

    def play(self, *options: str, rc: int = 0, playbook: str = "replace_nic") -> str:
        node = {"topology_root": str(self.tree), **self.variables}
        hosts = {"gpu-01": node, "other": {**node, "topology_root": "/nowhere"}}
        limit = [] if "--limit" in options or "all" in options else ["--limit", "gpu-01"]
        chosen = [option for option in options if option != "all"]
        # prints each item of a list on a separate line
        settings = {"ANSIBLE_CALLBACK_RESULT_FORMAT": "json"}
        return run_playbook(self.folder, hosts, playbook, *limit, *chosen, rc=rc, **settings)

    def before(self, *options: str, rc: int = 0, slot: str = f"slot={SLOT}") -> str:
        return self.play("-e", f"replace_nic_{slot}", *options, rc=rc)

    def after(self, *options: str, rc: int = 0) -> str:
        return self.play("-e", "replace_nic_phase=after", *options, rc=rc)

    def record(self) -> dict[str, t.Any]:
        return json.loads((self.folder / "report" / "replaced" / "gpu-01.json").read_text(encoding="utf-8"))

    def stored(self) -> dict[str, t.Any]:
        return json.loads((self.folder / "report" / "nodes" / "gpu-01.json").read_text(encoding="utf-8"))["facts"]

    def files(self) -> dict[str, bytes]:
        report = self.folder / "report"
        return {str(path.relative_to(report)): path.read_bytes() for path in report.rglob("*") if path.is_file()}

    def serials(self, facts: dict[str, t.Any]) -> dict[str, str]:
        return {
            address: function["vpd"]["serial_number"]
            for address, function in facts["functions"].items()
            if function["vpd"]
        }


@pytest.fixture(name="site")
def _site(tmp_path: Path) -> Site:
    return Site(tmp_path, "hgx-h100")


def test_a_card_is_replaced_and_a_second_run_changes_nothing(site):
    site.play(playbook="probe")
    first = site.stored()
    old = site.serials(first)[STORAGE]
    mac = (site.tree / "sys/class/net/enp89s0f0np0/address").read_text().strip()
    guid = (site.tree / "sys/class/infiniband/mlx5_4/node_guid").read_text().strip()
    site.variables["dhcp"] = {
        "leases": [{"mac": mac.upper().replace(":", "-")}, {"guid": f"0x{guid.replace(':', '')}"}]
    }
    site.variables["dra_driver_settings"] = {
        "exclude": [{"model": "*ConnectX-7*", "slot": SLOT}, {"driver": "ice"}],
        "aliases": {STORAGE: "storage"},
    }

    output = site.before("--check")
    assert f"serial {old}" in output
    assert "Check mode" not in output  # the note about the cluster is not shown, because no cluster is configured
    assert not (site.folder / "report" / "replaced").exists()

    output = site.before()
    assert f"slot 9: {STORAGE}, 0000:59:00.1: NVIDIA ConnectX-7, MCX755106AS-HEAT, serial {old}" in output
    assert f"{STORAGE}: enp89s0f0np0 {mac}, mlx5_4 GUID {guid}, 200G, up" in output
    assert f"fabric_nics: storage selects {STORAGE}, 0000:59:00.1 by slot" in output
    assert "fabric_nics: rails" not in output  # this rule selects NICs near GPUs
    assert f"dra_driver_settings.exclude[0] selects {STORAGE}, 0000:59:00.1 by model, slot" in output
    assert "dra_driver_settings.exclude[1]" not in output
    assert "dhcp.leases[0].mac contains its MAC address" in output
    assert "dhcp.leases[1].guid contains its GUID" in output
    assert f"dra_driver_settings.aliases.{STORAGE} contains its PCI address" in output
    assert "fabric_kubeconfig is not set, so the node was not drained" in output
    assert "--limit gpu-01 -e replace_nic_phase=after" in output
    assert site.record()["state"] == "out" and site.record()["card"]["serial"] == old
    files_before = site.files()
    assert "changed=0" in site.before() and site.files() == files_before

    site.exchange({STORAGE: NEW, "0000:59:00.1": NEW})
    files_before = site.files()
    output = site.after("--check")
    assert "Check mode: nothing was changed." in output and site.files() == files_before

    output = site.after()
    assert f"serial number {old} -> MT2646X00001" in output
    new_mac, new_guid = mac.replace("a0:88:c2", "a0:88:c3"), guid.replace("a088:c2", "a088:c3")
    assert f"enp89s0f0np0: MAC address {mac} -> {new_mac}" in output
    assert f"mlx5_4: GUID {guid} -> {new_guid}" in output
    assert "planned only (recorded machines): 1 node" in output  # the rules are planned for the new card
    assert "uncordon gpu-01 yourself" in output
    now = site.serials(site.stored())
    assert now.pop(STORAGE) == now.pop("0000:59:00.1") == "MT2646X00001"
    assert {**now, STORAGE: old, "0000:59:00.1": old} == site.serials(first)
    assert site.record()["state"] == "done" and site.record()["old"]["serial"] == old

    files_before = site.files()
    output = site.after()
    assert "changed=0" in output and "The card was already replaced" in output and site.files() == files_before


@pytest.fixture(name="node_facts", scope="module")
def _node_facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, t.Any]:
    return facts(build("hgx-h100", tmp_path_factory.mktemp("machines") / "hgx-h100"))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("'0123456'", "serial"),
        ("sn-0123456", "serial"),
        ("0123456", "serial number"),  # octal
        ("123456", "serial number"),  # has lost its leading zero
        ("10:20:30:40:50:16", "MAC address"),  # base 60
        ("102030405016", "MAC address"),
        ("0xa088c20300010203", "GUID"),
        ("A088.C203.0001.0203", "guid"),
        ("0000:49:00.0", "PCI address"),  # base 60
        ("'0000:49:00.0'", "address"),
        ("10000:49:00.0", ""),  # another domain
        ("1234567", ""),
        ("42798.0", ""),
        ("true", ""),
    ],
)
def test_identifiers_in_the_inventory_are_found_also_if_yaml_reads_them_as_numbers(node_facts, text, kind):
    card = find(cards(node_facts), address=RAIL)
    (function,) = card["functions"]
    function = {
        **function,
        "interfaces": [{"name": "eth0", "mac": "10:20:30:40:50:16"}],
        "rdma": [{"name": "mlx5_0", "guid": "a088:c203:0001:0203", "firmware": None}],
    }
    card = {**card, "serial": "0123456", "functions": [function]}
    variables = DataLoader().load(f"switch:\n  - port: {text}\nnames:\n  ? {text}\n  : x\n")
    names = {"serial": "serial number", "guid": "GUID", "address": "PCI address"}
    endings = {
        f"contains its {names[kind]}"
        if kind in names
        else f"may be its {kind}, which YAML read as a number (put it in quotes)"
    }
    lines = replacement.inventory_lines(card, node_facts, variables=variables)
    assert [line.partition(" ")[2] for line in lines] == [*endings, *endings] * bool(kind)
    assert [line.partition(".")[0] for line in lines] == ["switch[0]", "names"] * bool(kind)


def test_small_numbers_and_odd_serial_numbers_match_nothing(node_facts):
    card = find(cards(node_facts), address=RAIL)
    for serial in ("000042", "...", "1.", "0x", "9" * 5000):
        lines = replacement.inventory_lines({**card, "serial": serial}, node_facts, variables={"mtu": 42, "rate": 1.5})
        assert lines == []


def test_a_card_without_a_slot_is_selected_by_address_or_serial_number(site):
    site.before(slot=f"address={RAIL}")
    serial = site.record()["card"]["serial"]
    assert [function["address"] for function in site.record()["card"]["functions"]] == [RAIL]
    assert "fabric_nics: rails selects" in site.before(slot=f"serial={serial.lower()}")
    output = site.before(slot=f"serial={serial}x", rc=2)
    assert f"no NIC has serial {serial}x" in output and f"serial {serial}" in output
    site.exchange({RAIL: NEW})
    # the record names the card, so neither slot nor address is needed
    assert "MT2646X00001" in site.after()


def test_an_unknown_card_is_refused_with_a_list_of_the_cards(site):
    output = site.before(slot="slot=7", rc=2)
    assert "no NIC has slot 7; the NICs of this node are:" in output and f"slot 9: {STORAGE}" in output
    output = site.before(slot="address=0000:ff:00.0", rc=2)
    assert "no NIC has address 0000:ff:00.0" in output and RAIL in output
    output = site.before("-e", f"replace_nic_address={RAIL}", rc=2)
    assert f"no NIC has slot {SLOT} and address {RAIL}" in output
    assert "Identify the card" in site.play(rc=2)
    assert "select one with --limit NODE" in site.before("all", rc=2)
    assert "must be 'before' (the swap) or 'after'" in site.before("-e", "replace_nic_phase=during", rc=2)
    site.variables["topology_subset"] = ["functions", "devices"]
    assert "lack affinity, findings, groups" in site.before(rc=2)
    assert not (site.folder / "report").exists()


def test_a_machine_without_slots_is_reported(tmp_path):
    site = Site(tmp_path, "epyc-nps4")
    assert "this machine reports no slots of NICs (set replace_nic_address instead)" in site.before(slot="slot=1", rc=2)


def test_a_card_that_carries_the_nodes_own_traffic_is_refused(site):
    output = site.before(slot="address=0000:0b:00.1", rc=2)
    assert "this card carries the node's own traffic" in output and "enp11s0f1" in output
    assert "(move routes, " in output
    assert not (site.folder / "report").exists()


def test_vfs_and_their_users_are_reported(tmp_path):
    site = Site(tmp_path, "sriov")
    state = site.tree / "var/lib/kubelet/plugins/lanewise.dev/state"
    state.mkdir(parents=True)
    (state / "7d0c.json").write_text(json.dumps({"devices": [{"address": "0000:16:00.3"}]}), encoding="utf-8")
    output = site.before(slot="address=0000:16:00.5")  # a VF of the card
    assert "its VFs: 0000:16:00.2, 0000:16:00.3," in output
    assert "in use: 0000:16:00.3: a pod has it through the resource claim with UID 7d0c" in output
    assert "Before you remove the card, stop everything that uses it: 0000:16:00.3: a pod has it" in output
    assert site.record()["card"]["slots"] == ["2"]


def test_another_model_is_refused_unless_it_is_allowed(site):
    site.before()
    other = {**NEW, "subsystem": "15b3:0042", "vpd": {**NEW["vpd"], "PN": "MCX755106AC-HEAT"}}
    site.exchange({STORAGE: other, "0000:59:00.1": other})
    files_before = site.files()
    output = site.after(rc=2)
    assert "the new card is NVIDIA ConnectX-7 (MCX755106AC-HEAT)" in output and "replace_nic_other_model=true" in output
    assert "Nothing was changed:" in output and "stays cordoned" not in output  # no cluster is configured
    assert site.files() == files_before
    site.after("-e", "replace_nic_other_model=true")
    assert site.record()["card"]["part_number"] == "MCX755106AC-HEAT"
    site.after()  # the record now has the other model as the node's card


def facts(tree: Path) -> dict[str, t.Any]:
    return model.as_dict(probe(str(tree), diagnose=diagnose))


@pytest.mark.parametrize(
    ("override", "message", "allowed"),
    [
        (
            {"trained": "16.0 x16"},
            "its PCIe link is 16.0 GT/s x16, the old one's was 32.0 GT/s x16",
            "lost speed: Gen4",
        ),
        ({"trained": "32.0 x8"}, "its PCIe link is 32.0 GT/s x8, the old one's was 32.0 GT/s x16", "lost speed: x8"),
        ({"link": "16.0 x16"}, "its PCIe link is 16.0 GT/s x16, the old one's was 32.0 GT/s x16", ""),
        (
            {"state": "nolink"},
            "(ibp73s0): the port is down, the old one's was up (plug the cable in",
            "the port is down",
        ),
        ({"net": {"speed": 200000}}, "the port runs at 200G, the old one's ran at 400G", ""),
        ({"id": "15b3:101b"}, "the new card is 15b3:101b, the old one was 15b3:1021", ""),
        ({}, "", ""),
    ],
)
def test_a_new_card_must_be_as_fast_as_the_old_one(site, override, message, allowed):
    def card(tree: Path) -> dict[str, t.Any]:
        return find(cards(facts(tree)), address=RAIL)

    old, new = card(site.tree), card(site.exchange({RAIL: {**NEW, **override}}))
    assert same_card(old, new) is False and same_card(new, new) is True
    found = replacement.replacement_problems(old, new)
    assert len(found) == bool(message) and message in " ".join(found)
    # another model may be slower, but must reach the speed that it can have in this slot
    found = replacement.replacement_problems(old, new, other_model=True)
    assert len(found) == bool(allowed) and allowed in " ".join(found)


@pytest.mark.parametrize("serial", ["000000000000", "FFFF", "0"])
def test_cards_with_the_same_meaningless_serial_are_compared_by_guids_and_macs(serial: str) -> None:
    def card(guid: str | None, mac: str | None, serial: str | None = serial) -> Card:
        rdma = [{"name": "mlx5_0", "guid": guid, "firmware": None}]
        function: t.Any = {"rdma": rdma, "interfaces": [{"name": "ens1", "mac": mac}]}
        return t.cast(Card, {"serial": serial, "functions": [function]})

    old = card("a088:c203:0001:0001", "a0:88:c2:01:00:01")
    assert same_card(old, card("a088:c203:0001:0001", "a0:88:c2:01:00:01")) is True
    assert same_card(old, card("a088:c203:0002:0002", "a0:88:c2:02:00:02")) is False
    assert same_card(old, card(None, "a0:88:c2:02:00:02")) is False
    assert same_card(old, card(None, None)) is None
    assert same_card(old, card("a088:c203:0001:0001", None, "MT2646X00001")) is True
    assert same_card(card(None, None, "MT1"), card(None, None, "MT2")) is False


def test_a_card_that_is_unchanged_or_missing_is_refused(site):
    site.before(slot=f"address={RAIL}")
    assert "still has the old card, serial" in site.after(rc=2)
    site.exchange({}, WITHOUT_RAIL)
    output = site.after(rc=2)
    assert f"no NIC is in {RAIL}, where NVIDIA ConnectX-7 was (reseat it" in output
    assert "more than this card has changed" not in output and site.record()["state"] == "out"
    site.exchange({RAIL: {**NEW, "state": "nolink"}})
    assert "the port is down" in site.after(rc=2)
    site.tree = site.folder / "tree0"  # the old card was only reseated
    site.after("-e", "replace_nic_same_card=true")
    assert site.record()["state"] == "done"


def test_cards_are_compared_by_the_ids_that_both_have(site):
    card = find(cards(facts(site.tree)), address=RAIL)
    assert replacement.replacement_problems(card, {**card, "part_number": None}) == []


def test_a_pod_that_takes_another_nic_is_no_change_of_the_node(site):
    before, now = facts(site.tree), facts(site.tree)
    card = find(cards(before), address=RAIL)
    (nic,) = (nic for nic in now["nics"] if nic["address"] == OTHER_RAIL)
    nic.update(elsewhere=["interface"], interfaces=[], up=None, speed_mbps=None)
    assert replacement.other_differences(before, now, card, card) == []
    assert replacement.other_differences(now, before, card, card) == []


def test_a_replacement_reports_other_changes(site):
    site.before(slot=f"address={RAIL}")
    before, old = site.record()["facts"], site.record()["card"]

    def others(override: dict[str, t.Any]) -> list[str]:
        now = facts(site.exchange({RAIL: NEW, **override}))
        return replacement.other_differences(before, now, old, find(cards(now), address=RAIL))

    assert others({}) == []
    down = others({OTHER_RAIL: {"state": "nolink"}})
    assert down == ["NIC mlx5_9 (0000:da:00.0): state IB down instead of 400G IB"]
    assert others({OTHER_RAIL: {"trained": "32.0 x8"}}) == [
        "NIC mlx5_9 (0000:da:00.0): link Gen5 x8 instead of Gen5 x16"
    ]
    # VFs are configuration, which is applied again, so they do not stop the run
    assert others({OTHER_RAIL: {"vfs": 2}}) == []
    wrong = others({OTHER_RAIL: {**NEW, "vpd": {"SN": "MT2646X00002"}}})
    assert len(wrong) == 1 and "this card has been replaced, too: serial MT2646X00002 instead of" in wrong[0]
    output = site.after(rc=2)
    assert f"more than this card has changed: {wrong[0]}" in output
    assert wrong[0] in site.after("-e", "replace_nic_other_changes=true")


def test_a_dead_card_is_found_in_the_report(site):
    site.play(playbook="probe")
    old = site.serials(site.stored())[RAIL]
    site.exchange({}, WITHOUT_RAIL)
    output = site.before(slot=f"address={RAIL}")
    assert "The node does not show this card any more" in output and f"serial {old}" in output
    site.play(playbook="probe")  # now the card is missing from the report, too
    files_before = site.files()
    assert "no NIC has address" in site.before(slot=f"address={RAIL}", rc=2) and site.files() == files_before
    site.exchange({RAIL: NEW})
    assert f"serial number {old} -> MT2646X00001" in site.after()


def test_without_the_first_phase_the_new_card_is_compared_with_the_report(site):
    output = site.after("-e", f"replace_nic_slot={SLOT}", rc=2)
    assert "there is nothing to compare the new card with" in output
    site.play(playbook="probe")
    site.exchange({STORAGE: NEW, "0000:59:00.1": NEW})
    site.after("-e", f"replace_nic_slot={SLOT}")
    assert site.record()["state"] == "done"


def test_another_replacement_is_refused_until_the_first_has_ended(site):
    site.before()
    output = site.before(slot=f"address={RAIL}", rc=2)
    assert "slot 9:" in output and "Finish that first (replace_nic_phase=after)" in output
    output = site.after("-e", f"replace_nic_address={RAIL}", rc=2)
    assert "the card that is being replaced is another one: slot 9" in output


def cluster(now: dict[str, t.Any], *claims: tuple[str, str]) -> dict[str, t.Any]:
    """A cluster's objects: the driver's slice of the node gpu-01, and a claim for each namespace and device."""
    pool = {"name": "gpu-01", "generation": 1, "resourceSliceCount": 1}
    spec = {"nodeName": "gpu-01", "driver": DRIVER, "pool": pool, "devices": publication(now).devices}
    found = []
    for namespace, device in claims:
        results = [{"request": "nic", "driver": DRIVER, "pool": "gpu-01", "device": device}]
        pods = [{"resource": "pods", "name": f"{namespace}-0", "uid": "1"}]
        status = {"allocation": {"devices": {"results": results}}, "reservedFor": pods}
        found.append({"metadata": {"name": "net", "namespace": namespace}, "status": status})
    return {
        "nodes": [{"metadata": {"name": "gpu-01"}}],
        "slices": [{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "spec": spec}],
        "claims": found,
    }


def test_devices_and_claims_of_the_card_are_reported(tmp_path):
    now = facts(build("sriov", tmp_path / "machine"))
    found = cluster(now, ("training", "pci-0000-16-00-4"), ("other", "pci-0000-26-00-0"))
    card = find(cards(now), slot="2")
    devices = replacement.published_devices(card, "gpu-01", found)
    addresses = [device["address"] for device in devices]
    assert {"0000:16:00.4", "0000:16:00.5"} <= set(addresses) <= function_addresses(card)
    assert len(addresses) == len(set(addresses)) < len(publication(now).devices)
    lines = replacement.cluster_lines(devices, found["claims"])
    vf = f"{DRIVER} publishes pci-0000-16-00-4 (0000:16:00.4)"
    training = "allocated to claim training/net, used by pod training-0"
    assert f"{vf}: {training}" in lines
    assert not [line for line in lines if "other" in line]
    shared = cluster(now, ("training", "pci-0000-16-00-4"), ("storage", "pci-0000-16-00-4"))
    lines = replacement.cluster_lines(replacement.published_devices(card, "gpu-01", shared), shared["claims"])
    assert f"{vf}: allocated to claim storage/net, used by pod storage-0; {training}" in lines


def test_devices_of_the_old_card_are_distinguished_from_those_of_the_new(site):
    before, after = facts(site.tree), facts(site.exchange({RAIL: NEW}))
    old = find(cards(before), address=RAIL)
    new = card_at(cards(after), old)
    (device,) = replacement.published_devices(old, "gpu-01", cluster(before))
    assert device["address"] == RAIL
    assert replacement.counterparts(old, new, [RAIL, "0000:ff:00.0"]) == [RAIL]
    stale = replacement.stale_identifiers(old, new)
    assert old["functions"][0]["rdma"][0]["guid"] in stale
    assert [entry for entry in stale if entry in json.dumps(cluster(before)["slices"])]
    assert not [entry for entry in stale if entry in json.dumps(cluster(after)["slices"])]


@pytest.mark.parametrize(("address", "waits"), [(STORAGE, True), (RAIL, False)])
def test_a_setting_of_the_new_card_that_waits_for_a_reboot_keeps_the_node_cordoned(
    tmp_path: Path, address: str, waits: bool
) -> None:
    """Settings of other cards may wait as before the replacement."""
    tasks = yaml.safe_load((COLLECTION / "playbooks/tasks/replace_nic_after.yml").read_text(encoding="utf-8"))
    steps = [step for task in tasks for step in task.get("block", ())]
    check = next(step for step in steps if step["name"] == "Fail if the node still differs")
    variables = {
        "replace_nic_result": {"card": {"functions": [{"address": STORAGE}]}},
        "fabric_plan": {"changes": [], "reboot_reasons": [f"the firmware of {address} runs with SRIOV_EN=0, not 1"]},
        "site_problems": [],
        "__replace_nic_cordoned": True,
    }
    play = {"hosts": "all", "gather_facts": False, "vars": variables, "tasks": [check]}
    book = tmp_path / "book.yml"
    book.write_text(json.dumps([play]), encoding="utf-8")
    output = run_playbook(tmp_path, {"gpu-01": {}}, str(book.with_suffix("")), rc=2 if waits else 0)
    assert (f"{STORAGE} runs with SRIOV_EN=0, not 1: reboot the node, or set fabric_reboot_ok" in output) is waits
    assert ("and stays cordoned" in output) is waits
