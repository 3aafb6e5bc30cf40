# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Holds on a real API server and scheduler: which claims get held devices, and concurrent runs."""

from __future__ import annotations

import json
import typing as t
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone

import pytest
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.cluster.holding import DRIVER, RESOURCE, Fleet

kubernetes = pytest.importorskip("kubernetes", reason="needs the Python client of Kubernetes")
pytest.importorskip("ansible", reason="needs ansible-core")

from ansible.module_utils.testing import patch_module_args  # noqa: E402
from ansible_collections.lanewise.dra.plugins.module_utils.cluster_holds import Rules  # noqa: E402
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds import hold as hold_rules  # noqa: E402
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds.changes import Refused  # noqa: E402
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds.hold import Hold, holds  # noqa: E402
from ansible_collections.lanewise.dra.plugins.modules import dra_hold, dra_holds_info  # noqa: E402

GPUS = [f"{DRIVER}/hold-0/gpu-{number}" for number in range(3)]


class Modules:
    """Runs the modules and returns their results."""

    def __init__(self, plane: ControlPlane, capsys: pytest.CaptureFixture[str]) -> None:
        self.kubeconfig, self.capsys = str(plane.kubeconfig), capsys

    def run(self, module: t.Any, **arguments: t.Any) -> dict[str, t.Any]:
        with patch_module_args({"kubeconfig": self.kubeconfig, **arguments}), pytest.raises(SystemExit):
            module.main()
        return t.cast("dict[str, t.Any]", json.loads(self.capsys.readouterr().out))

    def hold(self, name: str, *devices: str, **more: t.Any) -> dict[str, t.Any]:
        arguments = {"owner": "team a", "reason": "a demo", "devices": list(devices), **more}
        return self.run(dra_hold, name=name, **arguments)

    def holds(self) -> dict[str, t.Any]:
        return self.run(dra_holds_info)


@pytest.fixture
def modules(newest: ControlPlane, capsys: pytest.CaptureFixture[str]) -> t.Iterator[Modules]:
    yield Modules(newest, capsys)
    for item in newest.expect("GET", f"{RESOURCE}/devicetaintrules")["items"]:
        newest.expect("DELETE", f"{RESOURCE}/devicetaintrules/{item['metadata']['name']}")


@pytest.fixture(scope="module")
def fleet(newest: ControlPlane) -> Fleet:
    fleet = Fleet(newest, "holds", {"hold-0": 3})
    fleet.template("one", 1)
    fleet.template("demo", 2, hold="demo")
    return fleet


def test_only_the_tolerating_claim_gets_held_devices(fleet: Fleet, modules: Modules) -> None:
    fleet.pod("before", "one")
    fleet.bound(1)
    (allocated,) = fleet.devices("before")
    free = [gpu for gpu in GPUS if gpu != allocated]
    result = modules.hold("demo", *free)
    assert result["changed"] and result["added"] == free and result["toleration"]["value"] == "demo"
    assert len(fleet.rules()) == 2
    fleet.pod("other", "one")
    assert "cannot allocate all claims" in fleet.rejection("other")
    assert set(fleet.where()) == {"before"}  # a pod that already has a device keeps it
    fleet.pod("tolerating", "demo")
    fleet.bound(2)
    assert fleet.devices("tolerating") == set(free)
    fleet.plane.expect("DELETE", f"{fleet.pods_at}/tolerating?gracePeriodSeconds=0")
    # the devices are still held, so the pending pod does not get them
    fleet.pod("again", "demo")
    fleet.bound(2)
    assert "other" not in fleet.where()
    fleet.plane.expect("DELETE", f"{fleet.pods_at}/again?gracePeriodSeconds=0")
    assert modules.run(dra_hold, name="demo", state="absent")["removed"] == free
    fleet.bound(2)
    assert "other" in fleet.where() and fleet.rules() == []


def test_check_mode_and_a_second_run_change_no_hold(fleet: Fleet, modules: Modules) -> None:
    assert modules.hold("demo", *GPUS, _ansible_check_mode=True)["changed"] and fleet.rules() == []
    first = modules.hold("demo", *GPUS)
    second = modules.hold("demo", *GPUS)
    assert first["changed"] and not second["changed"] and second["hold"] == first["hold"]
    fewer = modules.hold("demo", *GPUS[:1], _ansible_check_mode=True)
    assert fewer["removed"] == GPUS[1:] and len(fleet.rules()) == 3
    modules.hold("demo", *GPUS[:1])
    later = modules.hold("demo", *GPUS[:1], expires="2027-11-01T00:00:00Z")
    assert later["changed"] and later["hold"]["expires"] == "2027-11-01T00:00:00Z"
    assert not modules.hold("demo", *GPUS[:1])["changed"]  # the expiry is kept
    assert modules.run(dra_hold, name="demo", state="absent", _ansible_check_mode=True)["changed"]
    assert len(fleet.rules()) == 1
    assert modules.run(dra_hold, name="demo", state="absent")["changed"]
    assert not modules.run(dra_hold, name="demo", state="absent")["changed"]


def test_owners_and_devices_of_holds_are_reported(fleet: Fleet, modules: Modules) -> None:
    modules.hold("demo", *GPUS[:2])
    refused = modules.hold("second", GPUS[2], GPUS[1], owner="team b")
    assert f"{GPUS[1]} belongs to hold demo of team a" in refused["msg"] and len(fleet.rules()) == 2
    assert "does not belong to team b: choose another name" in modules.hold("demo", GPUS[2], owner="team b")["msg"]
    (found,) = modules.holds()["holds"]
    assert found["owner"] == "team a" and found["reason"] == "a demo" and sorted(found["devices"]) == GPUS[:2]


def test_an_expired_hold_is_overdue_until_it_is_extended(fleet: Fleet, modules: Modules) -> None:
    modules.hold("demo", *GPUS[:2])
    assert modules.holds()["overdue"] == []
    past = (datetime.now(timezone.utc) - timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    for rule in fleet.rules():
        change = {"metadata": {"annotations": {hold_rules.EXPIRES: past}}}
        fleet.plane.expect("PATCH", f"{RESOURCE}/devicetaintrules/{rule['metadata']['name']}", change)
    (line,) = modules.holds()["overdue"]
    late = f"hold demo of team a, until {past} (a demo), is overdue: 2 devices are still held"
    assert line == f"{late}: release or extend it with lanewise.dra.reserve"
    assert "expires: must be in the future" in modules.hold("demo", *GPUS, expires=past)["msg"]
    assert modules.hold("demo", *GPUS[:2])["changed"]  # the hold is extended
    assert modules.holds()["overdue"] == []


def test_simultaneous_holds_never_share_a_device(newest: ControlPlane, fleet: Fleet, modules: Modules) -> None:
    """Several runs request the same devices at once: at most one gets them, and the others hold nothing."""
    until = datetime.now(timezone.utc) + timedelta(hours=1)
    devices = tuple(hold_rules.parse_device(gpu) for gpu in GPUS)

    def create_hold(number: int) -> str:
        api = kubernetes.config.new_client_from_config(str(newest.kubeconfig))
        order = devices[number % 3 :] + devices[: number % 3]
        try:
            Rules(api, "resource.k8s.io/v1").make(Hold(f"run-{number}", "team a", "all of them", until, order))
        except Refused as refused:
            return str(refused)
        return ""

    for _round in range(5):
        with ThreadPoolExecutor(4) as pool:
            reported = list(pool.map(create_hold, range(4)))
        found = holds(fleet.rules())
        # a refused run holds nothing; two runs that conflict may both be refused
        assert {item.name for item in found} == {f"run-{number}" for number, text in enumerate(reported) if not text}
        assert len(found) <= 1 and all(len(item.devices) == 3 for item in found)
        assert all("belongs to hold run-" in text for text in reported if text)
        for entry in found:
            modules.run(dra_hold, name=entry.name, state="absent")


def test_simultaneous_runs_with_the_same_hold_create_it_once(
    newest: ControlPlane, fleet: Fleet, modules: Modules
) -> None:
    until = (datetime.now(timezone.utc) + timedelta(hours=1)).replace(microsecond=0)
    desired = Hold("demo", "team a", "one job", until, tuple(hold_rules.parse_device(gpu) for gpu in GPUS))

    def create_hold(_number: int) -> None:
        api = kubernetes.config.new_client_from_config(str(newest.kubeconfig))
        Rules(api, "resource.k8s.io/v1").make(desired)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(create_hold, range(4)))
    (found,) = holds(fleet.rules())
    assert set(found.devices) == set(desired.devices) and found.expires == until


def test_an_old_server_is_refused(oldest: ControlPlane, capsys: pytest.CaptureFixture[str]) -> None:
    modules = Modules(oldest, capsys)
    refused = modules.hold("demo", *GPUS)
    assert "Kubernetes 1.34 ignores DeviceTaintRules while its feature gate DRADeviceTaints is off" in refused["msg"]
    assert modules.holds() == {**modules.holds(), "holds": [], "overdue": []}
