# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""An upgrade from release 1.0.0 and a rollback to it while pods run: one release takes back the devices that the other
attached, and the node is restored. releases/old_driver.py runs 1.0.0.

If LANEWISE_RECORD names a folder, the records that 1.0.0 writes are copied there, as samples for
test_record_releases.py.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.driver import claims_node, fake_cluster
from ansible_collections.lanewise.dra.tests.driver.claims_node import ClaimsNode, Sandbox
from ansible_collections.lanewise.dra.tests.driver.releases import old_driver
from lanewise_driver.claims.records import ATTACHED, ATTACHING, DETACHING, PREPARED
from lanewise_driver.hook import program as hook

CLAIMS = ("one", "two", "child")
RECORD_FOLDER = os.environ.get("LANEWISE_RECORD")
#: The name of an operation of the driver, and its argument.
Step = tuple[str, dict[str, t.Any]]


def job(node: ClaimsNode, *steps: Step, killed_at: int = -1) -> old_driver.Job:
    """The job that runs these steps with 1.0.0 on the node."""
    paths = {name: str(path) for name, path in dataclasses.asdict(node.paths).items()}
    settings = {"node_name": node.settings.node_name, "virtual_interfaces": list(node.settings.virtual_interfaces)}
    return old_driver.Job(paths, settings, str(node.plane.kubeconfig), claims_node.NODE, list(steps), killed_at)


def links(sandbox: Sandbox) -> t.Any:
    """The links of a pod without values that change when an interface moves, and without `optimistic`, which duplicate
    address detection changes soon after attach."""
    found: dict[str, t.Any] = claims_node._without_volatile(sandbox.links())
    for link in found.values():
        link["addr_info"] = [{**address, "optimistic": None} for address in link["addr_info"]]
    return found


def claim_step(node: ClaimsNode, name: str, claim: str) -> Step:
    return name, dataclasses.asdict(node.claims[claim])


def attach_step(node: ClaimsNode, claim: str, sandbox: Sandbox) -> Step:
    return "attach", {**dataclasses.asdict(node.request(claim, sandbox.path)), "netns": str(sandbox.path)}


def phase(node: ClaimsNode, claim: str) -> str:
    """The phase in a claim's record, empty without a record."""
    path = node.paths.state_dir / f"{node.claims[claim].uid}.json"
    return t.cast(str, json.loads(path.read_text()).get("phase", PREPARED)) if path.exists() else ""


def save_record(node: ClaimsNode, claim: str, name: str) -> None:
    """Copy a claim's record to the folder for samples, if there is one."""
    if RECORD_FOLDER:
        path = node.paths.state_dir / f"{node.claims[claim].uid}.json"
        shutil.copy(path, Path(RECORD_FOLDER) / f"1.0.0-{name}.json")


@pytest.mark.parametrize("claim", CLAIMS)
def test_an_upgrade_keeps_the_devices_of_pods_and_returns_them_later(
    node: ClaimsNode, sandbox: Sandbox, claim: str
) -> None:
    old_driver.run(job(node, claim_step(node, "prepare", claim)))
    save_record(node, claim, f"prepared-{claim}")
    old_driver.run(job(node, attach_step(node, claim, sandbox)))
    save_record(node, claim, f"attached-{claim}")
    before = links(sandbox)
    service = node.service()
    assert service.recover() and claims_node.differences(before, links(sandbox)) == []
    # as the hook does when a container restarts
    fake_cluster.attach_with_retries(service, node.request(claim, sandbox.path))
    assert claims_node.differences(before, links(sandbox)) == []
    service.unprepare(node.claims[claim])
    assert set(sandbox.links()) == {"lo"}


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_rollback_keeps_the_devices_of_pods_and_returns_them_later(
    node: ClaimsNode, sandbox: Sandbox, claim: str
) -> None:
    service = node.service()
    service.prepare(node.claims[claim])
    service.attach(node.request(claim, sandbox.path))
    before = links(sandbox)
    service.close()
    old_driver.run(job(node, ("recover", {}), attach_step(node, claim, sandbox)))
    assert claims_node.differences(before, links(sandbox)) == [] and phase(node, claim) == ATTACHED
    old_driver.run(job(node, claim_step(node, "unprepare", claim)))
    assert set(sandbox.links()) == {"lo"}
    remove_markers(node)


def remove_markers(node: ClaimsNode) -> None:
    """Start the current release, which removes its markers of attached claims. 1.0.0 leaves them."""
    service = node.service()
    assert service.reconcile()
    service.close()


@pytest.mark.parametrize(
    "operation, expected_phase, stride", [("attach", ATTACHING, 60), ("unprepare", DETACHING, 120)]
)
def test_an_upgrade_recovers_an_operation_in_which_1_0_0_was_killed(
    node: ClaimsNode, sandbox: Sandbox, operation: str, expected_phase: str, stride: int
) -> None:
    """1.0.0 is killed before change 0, `stride`, 2 * `stride` and so on of the operation."""
    change, matches, killed = 0, 0, True
    while killed:
        steps = [claim_step(node, "prepare", "two"), attach_step(node, "two", sandbox)]
        if operation == "unprepare":
            steps.append(claim_step(node, "unprepare", "two"))
        killed = old_driver.run(job(node, *steps, killed_at=change))
        change += stride
        if phase(node, "two") == expected_phase:
            matches += 1
            save_record(node, "two", f"{expected_phase}-two")
        service = node.service()
        assert service.recover()
        service.unprepare(node.claims["two"])
        assert set(sandbox.links()) == {"lo"}
        service.store.sweep()
        service.close()
    assert matches


def test_after_a_rollback_hooks_find_devices_only_in_their_namespace(node: ClaimsNode, sandbox: Sandbox) -> None:
    """1.0.0 moves the devices to the next sandbox of the pod, and leaves the marker that the newer release wrote for
    hooks."""
    service = node.service()
    service.prepare(node.claims["one"])
    first = Sandbox()
    service.attach(node.request("one", first.path))
    uid = node.claims["one"].uid
    assert node.paths.attached_marker(uid).exists()
    service.close()
    old_driver.run(job(node, attach_step(node, "one", sandbox)))
    assert "net1" in sandbox.links() and "net1" not in first.links()
    for pod, expected in ((sandbox, True), (first, False)):
        with open(pod.path, "rb") as netns:
            assert hook.is_attached(str(node.paths.run_dir), uid, netns.fileno()) is expected
    # after 1.0.0 has taken the devices back, no hook may find them
    old_driver.run(job(node, claim_step(node, "unprepare", "one")))
    with open(sandbox.path, "rb") as netns:
        assert not hook.is_attached(str(node.paths.run_dir), uid, netns.fileno())
    first.end()
    remove_markers(node)
