# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The playbook swap, with the real scheduler and taint eviction controller. A tier gets exactly the requested devices
from pods of lower tiers, also after an interrupted run, and all other pods keep running."""

from __future__ import annotations

import json
import typing as t
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.cluster_holds import call_on_cluster
from ansible_collections.lanewise.dra.plugins.module_utils.cluster_swaps import Swaps, Unfinished
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import compile_site
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds import swap
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds.hold import SWAP, Hold, holds
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offers import offers
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.slices import slices
from ansible_collections.lanewise.dra.tests.cluster.client import APPLY_PATCH
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.cluster.holding import (
    ANSIBLE_PLAYBOOK,
    DRIVER,
    RESOURCE,
    Fleet,
    Object,
    Playbooks,
    claim_spec,
)
from ansible_collections.lanewise.dra.tests.cluster.queue_site import DRIVERS, machine, path_of
from ansible_collections.lanewise.dra.tests.common.process_tree import kill_tree

pytest.importorskip("kubernetes", reason="needs the Python client of Kubernetes")
pytestmark = pytest.mark.skipif(not ANSIBLE_PLAYBOOK.exists(), reason="needs ansible-core beside this Python")

NAMESPACE = "swaps"
NODES = {"swap-0": 4, "swap-1": 4}
REQUEST = {"swap_tier": "gold", "swap_owner": "team a", "swap_reason": "release"}
FULL_NODE = {**REQUEST, "swap_workload": {"name": "big", "namespace": NAMESPACE, "templates": ["gold-4"]}}
RETURN = {"swap_tier": "gold", "swap_owner": "team a", "swap_state": "returned"}


def gpus(node: str, *numbers: int) -> list[str]:
    return [f"{DRIVER}/{node}/gpu-{number}" for number in numbers]


@pytest.fixture(scope="module")
def cluster(newest: ControlPlane) -> Fleet:
    fleet = Fleet(newest, NAMESPACE, NODES)
    fleet.template("plain", 1)
    fleet.template("low", 1, tolerations=[swap.grace_toleration(0)])
    fleet.template("slow", 1, tolerations=[swap.grace_toleration(3600)])
    fleet.template("gold-1", 1, tolerations=swap.tier_tolerations("gold"))
    fleet.template("gold-4", 4, tolerations=swap.tier_tolerations("gold"))
    fleet.template("silver-1", 1, tolerations=swap.tier_tolerations("silver"))
    return fleet


@pytest.fixture
def fleet(cluster: Fleet) -> t.Iterator[Fleet]:
    yield cluster
    for item in cluster.plane.expect("GET", f"{RESOURCE}/devicetaintrules")["items"]:
        cluster.plane.expect("DELETE", f"{RESOURCE}/devicetaintrules/{item['metadata']['name']}")
    cluster.clear()


@pytest.fixture
def playbooks(newest: ControlPlane, tmp_path: Path) -> Playbooks:
    return Playbooks(newest, tmp_path)


def fill(fleet: Fleet, template: str = "low", **labels: str) -> dict[str, str]:
    """Start a pod without a controller for each GPU. Returns the names of the pods by their UIDs."""
    count = sum(NODES.values())
    for number in range(count):
        fleet.plane.expect(
            "POST",
            fleet.pods_at,
            {"metadata": {"name": f"low-{number}", "labels": labels}, "spec": fleet.pod_spec(template)},
        )
    fleet.bound(count)
    return fleet.uids()


def ended(fleet: Fleet, before: t.Mapping[str, str]) -> set[str]:
    """The names of the pods that no longer exist."""
    return {name for uid, name in before.items() if uid not in fleet.uids()}


def untouched(fleet: Fleet, before: t.Mapping[str, str]) -> bool:
    return not ended(fleet, before) and not fleet.rules() and not fleet.rules(swap.KEY)


def test_a_swap_is_previewed_made_and_returned(fleet: Fleet, playbooks: Playbooks) -> None:
    before = fill(fleet)
    reported = playbooks.run("swap", "--check", "--diff", **FULL_NODE)
    assert "gold: 4 device(s) for 1 pod(s) of big; 4 pod(s) to evict" in reported and "changed=1" in reported
    assert untouched(fleet, before)
    reported = playbooks.run("swap", **FULL_NODE, swap_state="previewed")
    assert "the controller counts 4 pod(s)" in reported and untouched(fleet, before)
    fleet.pod("waits", "low")
    fleet.rejection("waits")
    reported = playbooks.run("swap", **FULL_NODE)
    assert "4 device(s) are held for gold" in reported and "changed=1" in reported
    evicted = ended(fleet, before)
    assert len(evicted) == 4 and evicted <= set(before.values())  # exactly as many as requested
    assert len(fleet.rules()) == 4 and not fleet.rules(swap.KEY)
    # a pending pod does not get the devices, although its claim tolerates the swap's taint for some time
    fleet.rejection("waits")
    assert "changed=0" in playbooks.run("swap", **FULL_NODE)
    fleet.pod("gold", "gold-4")
    assert "gold" in fleet.bound(5)
    held = {
        "/".join(rule["spec"]["deviceSelector"][key] for key in ("driver", "pool", "device")) for rule in fleet.rules()
    }
    assert fleet.devices("gold") == held
    again = playbooks.run("swap", **FULL_NODE)
    assert "changed=0" in again and "4 device(s) are in use by the tier already" in again
    reported = playbooks.run("swap", "--check", **RETURN)
    assert "4 device(s) would be returned" in reported and len(fleet.rules()) == 4
    reported = playbooks.run("swap", **RETURN)
    assert "4 device(s) are returned" in reported and "pods of the tier keep 4 device(s)" in reported
    assert not fleet.rules() and "changed=0" in playbooks.run("swap", **RETURN)
    fleet.plane.expect("DELETE", f"{fleet.pods_at}/gold?gracePeriodSeconds=0")
    assert "waits" in fleet.bound(5)


def test_a_share_of_the_fleet_or_listed_devices_are_swapped(fleet: Fleet, playbooks: Playbooks) -> None:
    before = fill(fleet)
    workload = {"name": "one", "namespace": NAMESPACE, "templates": ["gold-1"]}
    reported = playbooks.run("swap", **REQUEST, swap_workload=workload, swap_share=30)
    assert "2 device(s) for 2 pod(s) of one, 30 % of 8 on the empty fleet; 2 pod(s)" in reported
    assert len(ended(fleet, before)) == 2 and len(fleet.rules()) == 2
    listed = gpus("swap-1", 0, 3)
    reported = playbooks.run("swap", **REQUEST, swap_devices=listed)
    (hold,) = holds(fleet.rules())
    assert {"/".join(device) for device in hold.devices} == set(listed)
    assert hold.purpose == "swap" and hold.owner == "team a" and hold.expires
    assert len(ended(fleet, before)) <= 4
    reported = playbooks.run("swap", rc=2, **REQUEST, swap_devices=[*listed, *gpus("swap-1", 9)])
    assert (
        f"no complete pool of a node publishes {DRIVER}/swap-1/gpu-9" in reported and "Nothing was changed" in reported
    )
    assert "reserve_state" not in reported and len(fleet.rules()) == 2
    reported = playbooks.run("reserve", rc=2, reserve_name="gold", reserve_state="absent")
    assert "return the swap with lanewise.dra.swap" in reported and len(fleet.rules()) == 2


def test_pods_and_workloads_that_are_not_prepared_for_a_swap_are_refused(fleet: Fleet, playbooks: Playbooks) -> None:
    assert "Set swap_tier" in playbooks.run("swap", rc=2, swap_tier="gold")
    before = fill(fleet, "plain")
    reported = playbooks.run("swap", rc=2, **REQUEST, swap_devices=gpus("swap-0", 0))
    assert "does not tolerate a swap with a grace period" in reported and untouched(fleet, before)
    reported = playbooks.run("swap", rc=2, **FULL_NODE)
    assert "whatever pods are moved" in reported and untouched(fleet, before)
    plain = {"name": "plain", "claims": [claim_spec(1)]}
    reported = playbooks.run("swap", rc=2, **REQUEST, swap_workload=plain)
    assert "does not tolerate the hold and the swap of gold" in reported and untouched(fleet, before)


def test_pods_that_kueue_manages_are_refused(fleet: Fleet, playbooks: Playbooks) -> None:
    before = fill(fleet, **{"kueue.x-k8s.io/podset": "main"})
    reported = playbooks.run("swap", rc=2, **REQUEST, swap_devices=gpus("swap-0", 0))
    assert "Kueue manages it (kueue.x-k8s.io/podset)" in reported and untouched(fleet, before)


def test_disruption_budgets_are_respected(fleet: Fleet, playbooks: Playbooks) -> None:
    for number in range(sum(NODES.values())):
        fleet.plane.expect(
            "POST",
            fleet.pods_at,
            {"metadata": {"name": f"low-{number}", "labels": {"app": "web"}}, "spec": fleet.pod_spec("low")},
        )
    fleet.bound(8)
    fleet.mark_running("web")
    budgets = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets"
    budget = {"metadata": {"name": "web"}, "spec": {"minAvailable": 7, "selector": {"matchLabels": {"app": "web"}}}}
    fleet.plane.expect("POST", budgets, budget)

    def one_disruption_allowed() -> t.Any:
        return fleet.plane.expect("GET", f"{budgets}/web").get("status", {}).get("disruptionsAllowed") == 1

    try:
        fleet.plane.wait_for(one_disruption_allowed, "the budget's count", 180)
        before = fleet.uids()
        reported = playbooks.run("swap", rc=2, **REQUEST, swap_devices=gpus("swap-0", 0, 1))
        assert f"PodDisruptionBudget {NAMESPACE}/web allows 1 disruption(s) now, but the swap would evict 2" in reported
        assert "No pod was evicted" in reported and untouched(fleet, before)
        # the rules of an interrupted preview do not mean that the pods have already ended
        _create_count_rules(fleet, 0, 1)
        reported = playbooks.run("swap", rc=2, **REQUEST, swap_devices=gpus("swap-0", 0, 1))
        assert "but the swap would evict 2" in reported and not ended(fleet, before)
        assert "2 rules count pods" in playbooks.run("reserve")
        reported = playbooks.run("swap", **REQUEST, swap_devices=gpus("swap-0", 0, 1), swap_state="previewed")
        assert "the controller counts 2 pod(s)" in reported and untouched(fleet, before)
        reported = playbooks.run("swap", **REQUEST, swap_devices=gpus("swap-0", 0, 1), swap_ignore_budgets=True)
        assert len(ended(fleet, before)) == 2 and "the swap would evict 2" in reported
    finally:
        fleet.plane.expect("DELETE", f"{budgets}/web")


def _create_count_rules(fleet: Fleet, *numbers: int) -> None:
    """Create the rules that a preview leaves if it is killed while the controller counts."""
    devices = tuple((DRIVER, "swap-0", f"gpu-{number}") for number in numbers)
    gold = Hold("gold", "team a", "release", datetime.now(timezone.utc) + timedelta(hours=1), devices, SWAP)
    for device in devices:
        fleet.plane.expect("POST", f"{RESOURCE}/devicetaintrules", swap.rule(gold, device, swap.COUNT, RESOURCE[6:]))


def test_a_killed_run_is_continued(fleet: Fleet, playbooks: Playbooks) -> None:
    """The run is killed while it waits for the pods, which have an hour to end. The test then deletes the pods."""
    before = fill(fleet, "slow")
    running = playbooks.start("swap", **FULL_NODE)
    try:

        def evicting() -> bool:
            rules = fleet.rules(swap.KEY)
            return len(rules) == 4 and all(rule["spec"]["taint"]["effect"] == swap.EVICT for rule in rules)

        fleet.plane.wait_for(evicting, "the rules that evict pods", 300)
    finally:
        kill_tree(running.pid)
        running.communicate()
    (hold,) = holds(fleet.rules())
    assert hold.owner == "team a" and hold.reason == "release" and hold.purpose == "swap" and len(hold.devices) == 4
    for rule in fleet.rules(swap.KEY):
        assert rule["metadata"]["annotations"]["lanewise.dev/hold-owner"] == "team a"
    assert "4 rules still evict pods" in playbooks.run("reserve")
    held_devices = set(hold.devices)
    for name in sorted(before.values()):
        if {tuple(device.split("/")) for device in fleet.devices(name)} & held_devices:
            fleet.plane.expect("DELETE", f"{fleet.pods_at}/{name}?gracePeriodSeconds=0")
    reported = playbooks.run("swap", **FULL_NODE)
    assert "4 device(s) are held for gold" in reported
    (after,) = holds(fleet.rules())
    assert set(after.devices) == held_devices and not fleet.rules(swap.KEY) and len(ended(fleet, before)) == 4


def test_the_devices_of_a_killed_run_are_returned(fleet: Fleet, playbooks: Playbooks) -> None:
    before = fill(fleet, "slow")
    running = playbooks.start("swap", **FULL_NODE)
    try:
        fleet.plane.wait_for(fleet.rules, "the first rule", 300)
    finally:
        kill_tree(running.pid)
        running.communicate()
    playbooks.run("swap", **RETURN)
    assert untouched(fleet, before)


def test_two_simultaneous_tiers_never_get_the_same_devices(
    fleet: Fleet, playbooks: Playbooks, newest: ControlPlane, tmp_path: Path
) -> None:
    """Two tiers request the same devices: one gets them, and the other's message names the owner. Two runs of the same
    tier make one swap."""
    before = fill(fleet)
    devices = gpus("swap-0", 0, 1, 2, 3)
    other = {"swap_tier": "silver", "swap_owner": "team b", "swap_reason": "demo", "swap_devices": devices}
    runs = [playbooks.start("swap", **entry) for entry in ({**REQUEST, "swap_devices": devices}, other)]
    output = [run.communicate()[0] for run in runs]
    (hold,) = holds(fleet.rules())
    codes = sorted(run.returncode for run in runs)
    assert codes == [0, 2], output
    assert "belongs to hold" in "".join(output) and len(hold.devices) == 4 and len(ended(fleet, before)) == 4
    owner, tier = hold.owner, hold.name
    playbooks.run("swap", swap_tier=tier, swap_owner=owner, swap_state="returned")
    same = [playbooks.start("swap", **REQUEST, swap_devices=gpus("swap-1", 0, 1)) for _run in range(2)]
    output = [entry.communicate()[0] for entry in same]
    assert {entry.returncode for entry in same} <= {0, 2}, output
    playbooks.run("swap", **REQUEST, swap_devices=gpus("swap-1", 0, 1))
    (hold,) = holds(fleet.rules())
    assert len(hold.devices) == 2 and not fleet.rules(swap.KEY) and len(ended(fleet, before)) == 6


@pytest.mark.parametrize("step", ["before the rules", "after the count", "while pods end"])
def test_a_run_evicts_no_pods_after_its_devices_are_returned(
    fleet: Fleet, newest: ControlPlane, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Another process returns the devices just before or after a step of the run. The run fails, and no rule stays."""
    before = fill(fleet, "slow" if step == "while pods end" else "low")
    kubeconfig = str(newest.write_kubeconfig("system:admin", "system:masters"))
    devices = tuple((DRIVER, "swap-0", f"gpu-{number}") for number in range(2))
    hold = Hold("gold", "team a", "release", datetime.now(timezone.utc) + timedelta(hours=1), devices, SWAP)
    returned: list[bool] = []

    def make(api: t.Any, kubernetes: str) -> Object:
        def return_devices(*_messages: str) -> None:
            other = Swaps(api, RESOURCE[6:], kubernetes, lambda _message: None)
            returned.append(other.return_devices("gold", "team a", check=False))

        swaps = Swaps(
            api, RESOURCE[6:], kubernetes, return_devices if step == "while pods end" else lambda _message: None
        )
        set_rules, checked_count = swaps._set_rules, swaps._checked_count

        def returned_before(*arguments: t.Any) -> None:
            if not returned:
                return_devices()
            set_rules(*arguments)

        def returned_after(*arguments: t.Any) -> int:
            count = checked_count(*arguments)
            return_devices()
            return count

        if step == "before the rules":
            monkeypatch.setattr(swaps, "_set_rules", returned_before)
        elif step == "after the count":
            monkeypatch.setattr(swaps, "_checked_count", returned_after)
        with pytest.raises(Unfinished) as failure:
            swaps.make(hold, devices, False, 60)
        return {"message": str(failure.value)}

    message = call_on_cluster(kubeconfig, None, "", make)["message"]
    assert returned == [True] and untouched(fleet, before), message
    evicted = 2 if step == "while pods end" else 0
    assert "another run changed hold gold" in message and f"At most {evicted} pod(s) were evicted" in message


def test_a_preview_does_not_change_the_swap_and_hold_of_another_tier(fleet: Fleet, playbooks: Playbooks) -> None:
    """The pods of the first swap have an hour to end. A preview for another tier does not stop that swap."""
    before = fill(fleet, "slow")
    running = playbooks.start("swap", **REQUEST, swap_devices=gpus("swap-0", 0))
    other = {"swap_tier": "silver", "swap_owner": "team b", "swap_reason": "demo", "swap_state": "previewed"}
    try:

        def evicting() -> bool:
            return [rule["spec"]["taint"]["effect"] for rule in fleet.rules(swap.KEY)] == [swap.EVICT]

        fleet.plane.wait_for(evicting, "the rule that evicts pods", 300)
        (rule,) = fleet.rules(swap.KEY)
        for more in ([], ["--check"]):
            reported = playbooks.run("swap", *more, rc=2, **other, swap_devices=gpus("swap-0", 0))
            assert f"{gpus('swap-0', 0)[0]} belongs to hold gold of team a" in reported
        (after,) = fleet.rules(swap.KEY)
        assert (after["metadata"]["uid"], after["spec"]) == (rule["metadata"]["uid"], rule["spec"])
        # a rule that an interrupted run left without a hold
        kill_tree(running.pid)
        for entry in fleet.rules():
            fleet.plane.expect("DELETE", f"{RESOURCE}/devicetaintrules/{entry['metadata']['name']}")
        for state in ("previewed", "swapped"):
            extra_vars = {**other, "swap_state": state, "swap_devices": gpus("swap-0", 0, 1)}
            reported = playbooks.run("swap", rc=2, **extra_vars)
            assert f"the pods of {gpus('swap-0', 0)[0]} are being evicted for swap gold" in reported
            assert "return its devices with lanewise.dra.swap" in reported and not fleet.rules()
        (after,) = fleet.rules(swap.KEY)
        assert (after["metadata"]["uid"], after["spec"]) == (rule["metadata"]["uid"], rule["spec"])
    finally:
        kill_tree(running.pid)
        running.communicate()
    assert not ended(fleet, before)


def test_a_swap_fails_safely_without_a_server_or_on_a_lost_node(fleet: Fleet, playbooks: Playbooks) -> None:
    """The run reports that pods of a lost node do not end. The next run uses devices of another node, and releases the
    hold on the lost node."""
    reported = playbooks.run("swap", rc=2, **FULL_NODE, plan_kubeconfig=str(_unreachable_kubeconfig(playbooks.folder)))
    assert "cannot be read" in reported and not fleet.rules()
    fill(fleet)
    before = fleet.uids()
    # finalizers simulate pods that only their kubelet can end
    names = [name for name, node in fleet.where().items() if node == "swap-0"]
    for name in names:
        fleet.plane.expect("PATCH", f"{fleet.pods_at}/{name}", {"metadata": {"finalizers": ["example.com/kubelet"]}})
    reported = playbooks.run("swap", rc=2, **REQUEST, swap_devices=gpus("swap-0", 0, 1), swap_timeout=2)
    assert "2 pod(s) still have devices" in reported and "If a node is lost" in reported
    (hold,) = holds(fleet.rules())
    assert hold.owner == "team a" and len(hold.devices) == 2 and len(fleet.rules(swap.KEY)) == 2
    for name in names:
        fleet.plane.expect("PATCH", f"{fleet.pods_at}/{name}", {"metadata": {"finalizers": None}})
    reported = playbooks.run("swap", **REQUEST, swap_devices=gpus("swap-1", 0, 1))
    (hold,) = holds(fleet.rules())
    assert {device[1] for device in hold.devices} == {"swap-1"} and not fleet.rules(swap.KEY)
    assert len(ended(fleet, before)) == 4


def test_gpus_are_swapped_with_the_nics_on_their_pcie_roots(fleet: Fleet, playbooks: Playbooks) -> None:
    """Each evicted pod releases a GPU and the NIC on its PCIe root."""
    pytest.importorskip("cel_expr_python", reason="needs the CEL engine")
    claims = {
        "dra_claims_drivers": DRIVERS,
        "dra_claims_tiers": [{"name": "gold"}, {"name": "batch", "grace": 0}],
        "dra_claims_templates": [
            {
                "name": f"pair-{tier}",
                "namespace": NAMESPACE,
                "tier": tier,
                "align": "pcie_root",
                "devices": [{"name": "gpu", "kind": "gpu"}, {"name": "nic", "kind": "rdma"}],
            }
            for tier in ("gold", "batch")
        ],
    }
    plane, node = fleet.plane, "swap-pairs"
    plane.add_node(node)
    published = slices(offers(node, t.cast(t.Any, machine("hgx-h100")), DRIVERS))
    for entry in published:
        plane.expect("POST", f"{RESOURCE}/resourceslices", entry)
    for item in compile_site(claims, {node: t.cast(t.Any, machine("hgx-h100"))}).objects:
        if item["kind"] in ("DeviceClass", "ResourceClaimTemplate"):
            plane.expect("PATCH", f"{path_of(item)}?fieldManager=lanewise&force=true", item, APPLY_PATCH)
    for number in range(8):
        fleet.pod(f"low-{number}", "pair-batch", node)
    fleet.bound(8)
    before = fleet.uids()
    for number in range(2):
        fleet.pod(f"gold-{number}", "pair-gold", node)
    workload = {"name": "pair", "namespace": NAMESPACE, "templates": ["pair-gold"]}
    reported = playbooks.run("swap", **REQUEST, swap_workload=workload, swap_count=2)
    assert "4 device(s) for 2 pod(s) of pair; 2 pod(s)" in reported, reported
    bound = fleet.bound(8)
    assert {"gold-0", "gold-1"} <= set(bound) and len(ended(fleet, before)) == 2
    (hold,) = holds(fleet.rules())
    pairs = [fleet.devices(f"gold-{number}") for number in range(2)]
    assert set().union(*pairs) == {"/".join(device) for device in hold.devices}
    roots = {}
    for entry in published:
        for device in entry["spec"]["devices"]:
            key = f"{entry['spec']['driver']}/{node}/{device['name']}"
            roots[key] = device["attributes"].get("resource.kubernetes.io/pcieRoot", {}).get("string")
    for pair in pairs:
        assert len(pair) == 2 and len({roots[device] for device in pair}) == 1, pair
    plane.expect("DELETE", f"{RESOURCE}/resourceslices?fieldSelector=spec.nodeName%3D{node}")


def _unreachable_kubeconfig(folder: Path) -> Path:
    """Write a kubeconfig with an address where no server listens."""
    cluster: Object = {"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}
    context: Object = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    path = folder / "unreachable.json"

    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [cluster],
                "users": [{"name": "u", "user": {}}],
                "contexts": [context],
                "current-context": "c",
            }
        )
    )
    return path


def test_an_old_server_is_refused(oldest: ControlPlane, tmp_path: Path) -> None:
    fleet = Fleet(oldest, NAMESPACE, {"swap-0": 4})
    fleet.template("gold-4", 4)
    workload = {
        "name": "big",
        "namespace": NAMESPACE,
        "claims": [claim_spec(4, tolerations=swap.tier_tolerations("gold"))],
    }
    reported = Playbooks(oldest, tmp_path).run("swap", rc=2, **{**FULL_NODE, "swap_workload": workload})
    assert "Kubernetes 1.34 cannot swap devices" in reported
