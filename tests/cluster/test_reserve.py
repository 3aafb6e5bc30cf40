# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The playbook reserve on a real scheduler: only the job gets the devices that are held for it."""

from __future__ import annotations

import typing as t
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds.hold import EXPIRES
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.cluster.holding import (
    ANSIBLE_PLAYBOOK,
    DRIVER,
    RESOURCE,
    Fleet,
    Playbooks,
    claim_spec,
)

pytest.importorskip("kubernetes", reason="needs the Python client of Kubernetes")
pytestmark = pytest.mark.skipif(not ANSIBLE_PLAYBOOK.exists(), reason="needs ansible-core beside this Python")

NAMESPACE = "reserve"
JOB = {
    "reserve_name": "tomorrow",
    "reserve_owner": "team a",
    "reserve_reason": "training",
    "reserve_count": 2,
    "reserve_workload": {"name": "job", "namespace": NAMESPACE, "templates": ["tomorrow"]},
}


@pytest.fixture(scope="module")
def fleet(newest: ControlPlane) -> Fleet:
    fleet = Fleet(newest, NAMESPACE, {"res-0": 2, "res-1": 4})
    fleet.template("one", 1)
    fleet.template("tomorrow", 2, hold="tomorrow")
    return fleet


@pytest.fixture
def playbooks(newest: ControlPlane, fleet: Fleet, tmp_path: Path) -> t.Iterator[Playbooks]:
    yield Playbooks(newest, tmp_path)
    fleet.clear()
    for item in newest.expect("GET", f"{RESOURCE}/devicetaintrules")["items"]:
        newest.expect("DELETE", f"{RESOURCE}/devicetaintrules/{item['metadata']['name']}")


def test_a_job_gets_the_devices_that_were_held_for_it(fleet: Fleet, playbooks: Playbooks) -> None:
    reported = playbooks.run("reserve", "--check", "--diff", **JOB)
    assert "fits without moves; 4 device(s) will be held" in reported and "changed=1" in reported and not fleet.rules()
    assert "changed=1" in playbooks.run("reserve", **JOB)
    assert len(fleet.rules()) == 4
    again = playbooks.run("reserve", **JOB)
    assert "changed=0" in again and "hold tomorrow of team a" in again and "(training): 4 devices" in again
    # two of six devices are left for other pods
    for number in range(3):
        fleet.pod(f"other-{number}", "one")
    fleet.bound(2)
    waiting = next(f"other-{number}" for number in range(3) if f"other-{number}" not in fleet.where())
    assert "cannot allocate all claims" in fleet.rejection(waiting)
    fleet.pod("job-0", "tomorrow")
    fleet.pod("job-1", "tomorrow")
    bound = fleet.bound(4)
    assert {"job-0", "job-1"} <= set(bound) and waiting not in bound
    after = playbooks.run("reserve", **JOB)
    assert "2 pod(s) run already" in after and "changed=0" in after
    released = playbooks.run("reserve", reserve_name="tomorrow", reserve_state="absent")
    assert "changed=1" in released and "nothing is held" in released and not fleet.rules()


def test_no_device_is_held_for_a_job_that_does_not_fit(fleet: Fleet, playbooks: Playbooks) -> None:
    reported = playbooks.run("reserve", rc=2, **{**JOB, "reserve_count": 9})
    assert "job: does not fit: 9 pod(s) do not fit, without moving pods" in reported and not fleet.rules()


def test_wrong_variables_and_tolerations_are_refused(fleet: Fleet, playbooks: Playbooks) -> None:
    assert "Set reserve_workload" in playbooks.run("reserve", rc=2, reserve_name="tomorrow")
    assert "did you mean reserve_name?" in playbooks.run("reserve", rc=2, reserve_nam="tomorrow")
    broad = claim_spec(1)
    broad["devices"]["requests"][0]["exactly"]["tolerations"] = [{"operator": "Exists"}]
    workload = {"name": "broad", "claims": [broad]}
    reported = playbooks.run("reserve", rc=2, **{**JOB, "reserve_workload": workload})
    assert "gpu tolerates other holds than tomorrow" in reported and not fleet.rules()
    plain = {"name": "plain", "claims": [claim_spec(1)]}
    reported = playbooks.run("reserve", "--check", **{**JOB, "reserve_workload": plain, "reserve_count": 1})
    assert "the workload does not tolerate the hold yet: gpu need" in reported


def test_an_expiry_may_be_written_without_quotes(fleet: Fleet, playbooks: Playbooks, tmp_path: Path) -> None:
    """YAML parses such an expiry as a timestamp, which modules get in another format."""
    until = (datetime.now(timezone.utc) + timedelta(days=3)).strftime("%Y-%m-%dT%H:%M:%SZ")
    (tmp_path / "until.yml").write_text(f"reserve_expires: {until}\nswap_expires: {until}\n", encoding="utf-8")
    options = ("-e", f"@{tmp_path / 'until.yml'}")
    playbooks.run("reserve", *options, **JOB)
    assert {rule["metadata"]["annotations"][EXPIRES] for rule in fleet.rules()} == {until}
    playbooks.run("reserve", reserve_name="tomorrow", reserve_state="absent")
    request = {"swap_tier": "gold", "swap_owner": "team a", "swap_reason": "release"}
    reported = playbooks.run("swap", "--check", *options, **request, swap_devices=[f"{DRIVER}/res-0/gpu-0"])
    assert f"1 device(s) would be held for gold until {until}" in reported


def test_drift_reports_an_overdue_hold(fleet: Fleet, playbooks: Playbooks) -> None:
    playbooks.run("reserve", **JOB)
    site = {
        "dra_claims_kubeconfig": str(fleet.plane.kubeconfig),
        "dra_claims_apply": False,
        "dra_claims_drivers": {"gpu.nvidia.com": {"version": "0.5.0"}},
        "ansible_connection": "local",
        "ansible_python_interpreter": "{{ ansible_playbook_python }}",
    }
    reported = " ".join(playbooks.run("drift", **site).split())
    assert "is overdue" not in reported
    for rule in fleet.rules():
        change = {"metadata": {"annotations": {EXPIRES: "2026-01-01T00:00:00Z"}}}
        fleet.plane.expect("PATCH", f"{RESOURCE}/devicetaintrules/{rule['metadata']['name']}", change)
    reported = " ".join(playbooks.run("drift", rc=1, **site).split())
    late = "hold tomorrow of team a, until 2026-01-01T00:00:00Z (training), is overdue: 4 devices are still held"
    assert f"{late}: release or extend it with lanewise.dra.reserve" in reported, reported


def test_an_old_server_is_refused(oldest: ControlPlane, tmp_path: Path) -> None:
    fleet = Fleet(oldest, NAMESPACE, {"res-0": 4})
    fleet.template("tomorrow", 2)
    reported = Playbooks(oldest, tmp_path).run("reserve", rc=2, **JOB)
    assert "Kubernetes 1.34 ignores DeviceTaintRules while its feature gate DRADeviceTaints is off" in reported
