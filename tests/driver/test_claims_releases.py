# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""An upgrade and a rollback while pods run: one release takes back what the other attached to a pod, and the node is
restored. The other release is 1.0.0 itself (releases/old_driver.py).

With LANEWISE_RECORD set to a folder, the records that 1.0.0 writes here are copied there, for test_record_releases.py.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.driver import answers
from ansible_collections.lanewise.dra.tests.driver import claims_world as world_module
from ansible_collections.lanewise.dra.tests.driver.claims_world import Sandbox, World
from ansible_collections.lanewise.dra.tests.driver.releases import old_driver
from lanewise_driver.claims.records import ATTACHED, ATTACHING, DETACHING, PREPARED
from lanewise_driver.hook import program as hook

CLAIMS = ("one", "two", "child")
RECORDED = os.environ.get("LANEWISE_RECORD")
Step = tuple[str, dict[str, t.Any]]


def job(world: World, *steps: Step, killed_at: int = -1) -> old_driver.Job:
    paths = {name: str(path) for name, path in dataclasses.asdict(world.paths).items()}
    given = {"node_name": world.settings.node_name, "virtual_interfaces": list(world.settings.virtual_interfaces)}
    return old_driver.Job(paths, given, str(world.plane.kubeconfig), world_module.NODE, list(steps), killed_at)


def links(sandbox: Sandbox) -> t.Any:
    """The links of a pod, without what changes in the second after attach, while addresses are proven unique."""
    found: dict[str, t.Any] = world_module._without_volatile(sandbox.links())
    for link in found.values():
        link["addr_info"] = [{**one, "optimistic": None} for one in link["addr_info"]]
    return found


def claim_step(world: World, name: str, claim: str) -> Step:
    return name, dataclasses.asdict(world.claims[claim])


def attach_step(world: World, claim: str, sandbox: Sandbox) -> Step:
    return "attach", {**dataclasses.asdict(world.request(claim, sandbox.path)), "netns": str(sandbox.path)}


def phase(world: World, claim: str) -> str:
    path = world.paths.state_dir / f"{world.claims[claim].uid}.json"
    return t.cast(str, json.loads(path.read_text()).get("phase", PREPARED)) if path.exists() else ""


def save_record(world: World, claim: str, name: str) -> None:
    if RECORDED:
        path = world.paths.state_dir / f"{world.claims[claim].uid}.json"
        shutil.copy(path, Path(RECORDED) / f"1.0.0-{name}.json")


@pytest.mark.parametrize("claim", CLAIMS)
def test_an_upgrade_keeps_the_devices_of_pods_and_returns_them_later(
    clean: World, sandbox: Sandbox, claim: str
) -> None:
    old_driver.run(job(clean, claim_step(clean, "prepare", claim)))
    save_record(clean, claim, f"prepared-{claim}")
    old_driver.run(job(clean, attach_step(clean, claim, sandbox)))
    save_record(clean, claim, f"attached-{claim}")
    before = links(sandbox)
    service = clean.service()
    assert service.recover() and world_module.differences(before, links(sandbox)) == []
    # a container of the pod starts again
    answers.attach(service, clean.request(claim, sandbox.path))
    assert world_module.differences(before, links(sandbox)) == []
    service.unprepare(clean.claims[claim])
    assert set(sandbox.links()) == {"lo"}


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_rollback_keeps_the_devices_of_pods_and_returns_them_later(
    clean: World, sandbox: Sandbox, claim: str
) -> None:
    service = clean.service()
    service.prepare(clean.claims[claim])
    service.attach(clean.request(claim, sandbox.path))
    before = links(sandbox)
    service.close()
    old_driver.run(job(clean, ("recover", {}), attach_step(clean, claim, sandbox)))
    assert world_module.differences(before, links(sandbox)) == [] and phase(clean, claim) == ATTACHED
    old_driver.run(job(clean, claim_step(clean, "unprepare", claim)))
    assert set(sandbox.links()) == {"lo"}
    clear_marks(clean)


def clear_marks(world: World) -> None:
    """Let the next driver remove the marks that 1.0.0 leaves, because it does not know them."""
    service = world.service()
    assert service.reconcile()
    service.close()


@pytest.mark.parametrize("act, phase_, stride", [("attach", ATTACHING, 60), ("unprepare", DETACHING, 120)])
def test_an_upgrade_recovers_what_a_killed_release_left(
    clean: World, sandbox: Sandbox, act: str, phase_: str, stride: int
) -> None:
    """1.0.0 is killed at every n-th change that it makes."""
    step, matches, killed = 0, 0, True
    while killed:
        steps = [claim_step(clean, "prepare", "two"), attach_step(clean, "two", sandbox)]
        if act == "unprepare":
            steps.append(claim_step(clean, "unprepare", "two"))
        killed = old_driver.run(job(clean, *steps, killed_at=step))
        step += stride
        if phase(clean, "two") == phase_:
            matches += 1
            save_record(clean, "two", f"{phase_}-two")
        service = clean.service()
        assert service.recover()
        service.unprepare(clean.claims["two"])
        assert set(sandbox.links()) == {"lo"}
        service.store.sweep()
        service.close()
    assert matches


def test_a_mark_that_a_rollback_leaves_opens_no_other_namespace(clean: World, sandbox: Sandbox) -> None:
    """1.0.0 moves the devices to the next namespace of the pod, and the mark of the newer release stays."""
    service = clean.service()
    service.prepare(clean.claims["one"])
    first = Sandbox()
    service.attach(clean.request("one", first.path))
    uid = clean.claims["one"].uid
    assert clean.paths.attached(uid).exists()
    service.close()
    old_driver.run(job(clean, attach_step(clean, "one", sandbox)))
    assert "net1" in sandbox.links() and "net1" not in first.links()
    for pod, there in ((sandbox, True), (first, False)):
        with open(pod.path, "rb") as netns:
            assert hook.is_attached(str(clean.paths.run_dir), uid, netns.fileno()) is there
    # after 1.0.0 has taken them back, no hook may find them
    old_driver.run(job(clean, claim_step(clean, "unprepare", "one")))
    with open(sandbox.path, "rb") as netns:
        assert not hook.is_attached(str(clean.paths.run_dir), uid, netns.fileno())
    first.end()
    clear_marks(clean)
