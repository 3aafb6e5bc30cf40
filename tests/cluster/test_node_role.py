# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The role dra_driver on a real node with systemd, kubelet, containerd and a control plane.

The tests depend on each other: their order in this file is the life cycle of a node. So they stay in one file.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import threading
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.config.interface_config import parameters
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.cluster.driver import ACCOUNT, API, NAME, add_rail
from ansible_collections.lanewise.dra.tests.cluster.site_node import (
    CURRENT,
    PYTHON,
    REQUIRED,
    UNIT,
    WHEELHOUSE,
    Site,
    SystemdNode,
    other_wheel,
)
from ansible_collections.lanewise.dra.tests.cluster.systemd import Machine
from ansible_collections.lanewise.dra.tests.common.places import COLLECTION
from ansible_collections.lanewise.dra.tests.site.test_hostile_node import hostile

pytest.importorskip("kubernetes", reason="needs the Python client of Kubernetes")
pytestmark = REQUIRED


@pytest.fixture(scope="module")
def machine() -> t.Iterator[Machine]:
    with Machine() as started:
        yield started


@pytest.fixture(scope="module")
def site(newest: ControlPlane, machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[Site]:
    with SystemdNode(newest, machine) as node:
        for number in range(2):
            add_rail(number)
        yield Site(node, machine, tmp_path_factory.mktemp("site"))


def test_every_error_is_reported_before_anything_is_changed(site: Site) -> None:
    wrong = {"metrics_address": "nowhere", "rails": {"x": 1}}
    site.play(
        rc=2,
        dra_driver_node_name="node-9",
        dra_driver_settings=wrong,
        dra_driver_python="python-none",
    )
    assert "There is no Node node-9" in site.output
    assert "python-none does not exist" in site.output
    assert "metrics_address" in site.output and "rails.x" in site.output
    assert not CURRENT.parent.exists() and not Path("/etc/lanewise").exists()


OTHER_CONTAINERD = """version = 3
root = "{folder}/root"
state = "{folder}/state"
[grpc]
address = "{folder}/containerd.sock"
[plugins.'io.containerd.cri.v1.runtime']
cdi_spec_dirs = ["/etc/cdi"]
"""


def test_a_runtime_that_ignores_cdi_specs_is_reported(site: Site) -> None:
    """The module sees only a second containerd, which runs in another PID namespace."""
    folder = Path("/run/second")  # paths of sockets must be short
    folder.mkdir()
    config = folder / "containerd.toml"
    config.write_text(OTHER_CONTAINERD.format(folder=folder))
    options = {"kubelet_version": "v1.33.9", "runtime_version": "containerd://2.4.2", "python": PYTHON}
    arguments = folder / "arguments.json"
    arguments.write_text(json.dumps({"ANSIBLE_MODULE_ARGS": options}))
    program = "ansible_collections.lanewise.dra.plugins.modules.dra_driver_preflight"
    log = folder / "log"
    check_running = f"kill -0 $! || {{ cat {log} >&2; exit 1; }}"
    wait = f"until grep -q 'successfully booted' {log}; do {check_running}; sleep 0.1; done"
    script = f"{site.node.programs['containerd']} --config {config} >{log} 2>&1 & {wait}; exec $0 -m $1 $2"
    command = ["unshare", "--pid", "--mount-proc", "--fork", "--kill-child", "sh", "-c", script]
    done = subprocess.run(
        [*command, sys.executable, program, str(arguments)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    problems = json.loads(done.stdout)["problems"]
    assert len(problems) == 2, problems
    assert (
        "kubelet is 1.33" in problems[0] and "Add it to cdi_spec_dirs in" in problems[1] and str(config) in problems[1]
    )


def test_a_missing_library_of_grpc_is_reported_with_its_package(site: Site) -> None:
    program = "import ctypes, os; ctypes.CDLL('libstdc++.so.6'); print(open('/proc/self/maps').read())"
    maps = subprocess.run([PYTHON, "-c", program], capture_output=True, text=True, check=True).stdout
    (library,) = {line.split()[-1] for line in maps.splitlines() if "libstdc++" in line}
    subprocess.run(["mount", "--bind", "/dev/null", library], check=True)  # in the sandbox's mount namespace
    try:
        site.play(rc=2)
    finally:
        subprocess.run(["umount", library], check=True)
    assert "cannot load libstdc++.so.6" in site.output and "apt install libstdc++6" in site.output
    assert not CURRENT.parent.exists()


def test_check_mode_of_a_first_run_changes_nothing(site: Site) -> None:
    assert site.play("--check", "--diff") > 5
    assert not CURRENT.parent.exists() and not Path("/etc/lanewise").exists()
    assert site.plane.request("GET", ACCOUNT)[0] == 404
    assert site.systemctl("is-enabled", UNIT) != "enabled"


def test_the_first_run_installs_the_driver(site: Site) -> None:
    site.play("--diff")
    assert site.systemctl("is-active", UNIT) == "active" and site.systemctl("is-enabled", UNIT) == "enabled"
    token = Path("/etc/lanewise/token")
    assert token.stat().st_mode & 0o777 == 0o600 and token.read_text() not in site.output
    info = site.info()
    assert info["ready"] and info["release"] == info["service"]["release"] == info["releases"][0]
    assert info["token"]["node"] == site.node.name
    assert {device["attributes"]["ifName"]["string"] for device in info["devices"]} == {"rail0", "rail1"}
    assert sum(len(item["spec"]["devices"]) for item in site.slices()) == 2


def test_a_second_run_changes_nothing(site: Site) -> None:
    before = site.property("MainPID"), Path("/etc/lanewise/token").read_text()
    assert site.play() == 0
    assert site.play("--check", "--diff") == 0
    assert (site.property("MainPID"), Path("/etc/lanewise/token").read_text()) == before


def test_the_service_has_only_the_rights_that_it_needs(site: Site) -> None:
    pid = site.property("MainPID")
    status = site.machine.run("cat", f"/proc/{pid}/status").stdout
    assert re.search(r"NoNewPrivs:\s*1", status) and re.search(r"Seccomp:\s*2", status)
    allowed = int(re.search(r"CapBnd:\s*(\S+)", status)[1], 16)  # type: ignore[index]
    assert allowed.bit_count() == 5
    # it cannot use up the node's memory, and the OOM killer prefers it to kubelet
    assert site.property("MemoryMax") == str(512 << 20)
    assert site.property("OOMScoreAdjust") == "-500"  # not checked in /proc, as systemd cannot set it in a container
    # the next start must see the pinned namespaces
    links = site.machine.run("readlink", f"/proc/{pid}/ns/mnt", "/proc/1/ns/mnt").stdout.split()
    assert links[0] == links[1]
    verified = site.machine.run("systemd-analyze", "verify", f"/etc/systemd/system/{UNIT}", check=False)
    unit_lines = [line for line in (verified.stdout + verified.stderr).splitlines() if UNIT in line]
    assert not unit_lines, unit_lines


def run_pod(site: Site, name: str) -> None:
    """Run a pod that has a device as net1."""
    plane, node = site.plane, site.node
    config = parameters({"name": "net1", "addresses": ["203.0.113.2/28"]})
    devices = {
        "requests": [{"name": "nic", "exactly": {"deviceClassName": "nic"}}],
        "config": [{"opaque": {"driver": NAME, "parameters": config}}],
    }
    claim = {"metadata": {"name": name}, "spec": {"devices": devices}}
    plane.expect("POST", f"{API}/namespaces/default/resourceclaims", claim)
    node.run_pod(node.pod(name, resourceClaims=[{"name": "net", "resourceClaimName": name}]))
    assert "net1" in node.execute(name, "ip", "-brief", "link")


def test_a_pod_gets_its_device_and_keeps_it_when_the_driver_restarts(site: Site) -> None:
    plane, node = site.plane, site.node
    selector = {"cel": {"expression": f'device.driver == "{NAME}"'}}
    plane.expect("POST", f"{API}/deviceclasses", {"metadata": {"name": "nic"}, "spec": {"selectors": [selector]}})
    run_pod(site, "one")
    site.machine.run("systemctl", "restart", UNIT)
    assert "net1" in node.execute("one", "ip", "-brief", "link")
    plane.wait_for(lambda: site.info()["ready"], "the driver to be ready again", 30)
    assert [claim["pod"] for claim in site.info()["claims"]] == ["one"]


def test_a_driver_that_pods_need_is_not_removed(site: Site) -> None:
    site.play(rc=2, dra_driver_state="absent")
    assert "default/one of pod one" in site.output
    assert site.systemctl("is-active", UNIT) == "active"


def test_an_unusable_token_is_replaced(site: Site) -> None:
    """The role also restarts a driver that has already failed with the bad token, which is one more change."""
    path = Path("/etc/lanewise/token")
    before = path.read_text()
    path.write_text("none")
    assert site.play("--check") in (1, 2)
    assert path.read_text() == "none"
    assert site.play() in (2, 3)
    assert path.read_text() not in ("none", before)


def test_a_node_that_claims_another_nodes_name_gets_no_token_for_that_node(site: Site) -> None:
    """The node's Python adds facts to every module's result. By default, Ansible would use them as variables."""
    site.plane.add_node("other-node")
    facts = {"dra_driver_node_name": "other-node", "dra_driver_kubeconfig": "/taken/from/a/fact"}
    path = Path("/etc/lanewise/token")
    path.write_text("none")
    site.play(rc=2, **hostile(site.folder, ansible_facts=facts))
    assert "returned facts that Ansible uses as variables of the site: 'dra_driver_kubeconfig'" in site.output
    assert path.read_text() == "none" and "/taken/from/a/fact" not in site.output
    assert site.play() in (2, 3) and site.info()["token"]["node"] == site.node.name
    site.plane.expect("DELETE", "/api/v1/nodes/other-node")


def test_changed_settings_are_written_and_invalid_ones_are_not(site: Site) -> None:
    before, pid = Path("/etc/lanewise/driver.yml").read_text(), site.property("MainPID")
    site.play(rc=2, dra_driver_settings={**site.settings, "log_level": "loud"})
    assert "log_level" in site.output
    assert Path("/etc/lanewise/driver.yml").read_text() == before and site.property("MainPID") == pid
    site.settings["log_level"] = "info"
    assert site.play("--check", "--diff") == 2 and "+log_level: info" in site.output
    assert Path("/etc/lanewise/driver.yml").read_text() == before
    assert site.play() == 2
    assert site.property("MainPID") != pid


def test_settings_that_a_killed_run_wrote_take_effect_at_the_next_run(site: Site) -> None:
    """The changed setting is the metrics address: a running driver keeps its old one, and the role checks the driver's
    readiness at the new one."""
    settings, pid = Path("/etc/lanewise/driver.yml"), site.property("MainPID")
    site.settings["metrics_address"] = "127.0.0.1:9177"
    level = f"log_level: {site.settings['log_level']}\n"
    settings.write_text(settings.read_text().replace(level, level + "metrics_address: 127.0.0.1:9177\n"))
    site.play(playbook="lanewise.dra.drift", rc=1)
    assert "driver: start it" in site.output
    assert site.play() == 1
    assert site.info()["ready"] and site.property("MainPID") != pid
    assert site.play() == 0


def test_missing_or_changed_files_are_drift_and_are_restored(site: Site) -> None:
    unit, kubeconfig = (
        f"/etc/systemd/system/{UNIT}",
        Path("/etc/lanewise/kubeconfig"),
    )
    before = site.machine.run("cat", unit).stdout, kubeconfig.read_text()
    site.systemctl("disable", UNIT)
    site.play(playbook="lanewise.dra.drift", rc=1)
    assert "driver: enable it" in site.output
    site.machine.run("rm", unit)
    kubeconfig.write_text(before[1] + "\n")
    site.play(playbook="lanewise.dra.drift", rc=1)
    assert "driver: a new unit, a new kubeconfig" in site.output
    site.play()
    assert (site.machine.run("cat", unit).stdout, kubeconfig.read_text()) == before
    assert site.systemctl("is-enabled", UNIT) == "enabled"
    assert site.play(playbook="lanewise.dra.drift") == 0


def test_a_unit_that_systemd_has_not_read_is_reloaded_and_restarted(site: Site) -> None:
    pid = site.property("MainPID")
    # as after a run that was killed when it had written the unit
    site.machine.run("touch", "--date=9 seconds", f"/etc/systemd/system/{UNIT}")
    assert site.property("NeedDaemonReload") == "yes"
    site.play(playbook="lanewise.dra.drift", rc=1)
    assert "driver: restart it" in site.output
    assert site.play() == 1
    assert site.property("NeedDaemonReload") == "no" and site.property("MainPID") != pid
    assert site.play() == 0


def changed_wheel(site: Site, name: str, *changes: tuple[str, str]) -> Path:
    """A wheel of the driver with the version `name` and with changes to its cli.py."""
    return other_wheel(next((site.folder / "cache").glob("*/*.whl")), site.folder, name, *changes)


def test_an_unhealthy_release_is_rolled_back(site: Site) -> None:
    good, settings = os.readlink(CURRENT), Path("/etc/lanewise/driver.yml").read_text()
    broken = changed_wheel(
        site,
        "1.0.1",
        (
            'if options.command == "run":',
            'if options.command == "run":\n            raise OSError("broken on purpose")',
        ),
    )
    site.play(rc=2, dra_driver_wheel=str(broken), dra_driver_settings={**site.settings, "log_level": "error"})
    assert "did not become healthy with release 1.0.1-" in site.output and "broken on purpose" in site.output
    assert "and its settings. The driver is ready." in site.output
    assert os.readlink(CURRENT) == good and Path("/etc/lanewise/driver.yml").read_text() == settings
    assert site.info()["ready"]
    assert "net1" in site.node.execute("one", "ip", "-brief", "link")


def test_upgrade_and_rollback_keep_pods_and_the_configured_number_of_releases(site: Site) -> None:
    first = Path(os.readlink(CURRENT)).name
    newer: Object = {"dra_driver_wheel": str(changed_wheel(site, "1.0.2")), "dra_driver_keep_releases": 2}
    assert site.play(playbook="lanewise.dra.drift") == 0
    site.play(playbook="lanewise.dra.drift", rc=1, **newer)
    assert re.search(f"driver: {first} to 1.0.2-", site.output)

    site.play(playbook="lanewise.dra.upgrade", **newer)
    assert "batch 1: 1 node, the canary" in site.output and "done: 1 node" in site.output
    second = Path(os.readlink(CURRENT)).name
    assert second.startswith("1.0.2-")
    # the unhealthy release is removed, the previous one is kept
    assert {path.name for path in (CURRENT.parent / "releases").iterdir()} == {first, second}
    assert "net1" in site.node.execute("one", "ip", "-brief", "link")
    assert site.play(playbook="lanewise.dra.upgrade", **newer) == 0 and "no changes needed: 1 node" in site.output

    assert site.info()["previous"] == first
    site.play("--check", playbook="lanewise.dra.rollback")
    assert Path(os.readlink(CURRENT)).name == second
    site.play(playbook="lanewise.dra.rollback")
    assert Path(os.readlink(CURRENT)).name == first and site.info()["service"]["release"] == first
    assert "net1" in site.node.execute("one", "ip", "-brief", "link")
    assert site.play(playbook="lanewise.dra.rollback") == 0
    assert f"was already rolled back to release {first}" in site.output
    assert Path(os.readlink(CURRENT)).name == first and site.info()["service"]["release"] == first
    site.play(playbook="lanewise.dra.rollback", dra_driver_release=second)
    assert Path(os.readlink(CURRENT)).name == second


def test_an_upgrade_killed_before_the_restart_is_finished_by_the_next_run(site: Site) -> None:
    second = Path(os.readlink(CURRENT)).name
    newer: Object = {"dra_driver_wheel": str(site.folder / "lanewise_driver-1.0.2-py3-none-any.whl")}
    (first,) = {path.name for path in (CURRENT.parent / "releases").iterdir()} - {second}
    CURRENT.unlink()
    CURRENT.symlink_to(f"releases/{first}")
    site.play(playbook="lanewise.dra.drift", rc=1)
    assert "driver: restart it" in site.output
    site.play(playbook="lanewise.dra.upgrade")
    assert "done: 1 node" in site.output and site.info()["service"]["release"] == first
    assert site.play(playbook="lanewise.dra.drift") == 0
    # upgrade to a release that is already on the node, and roll back from it
    site.play(playbook="lanewise.dra.upgrade", **newer)
    site.play(playbook="lanewise.dra.rollback")
    assert site.info()["service"]["release"] == first
    site.play(playbook="lanewise.dra.upgrade", **newer)
    assert site.info()["service"]["release"] == second
    assert "net1" in site.node.execute("one", "ip", "-brief", "link")


def cordoned(site: Site) -> bool:
    return bool(site.plane.expect("GET", f"/api/v1/nodes/{site.node.name}")["spec"].get("unschedulable"))


def test_a_rollout_stops_at_an_unhealthy_driver_and_the_next_run_continues(site: Site) -> None:
    good, wheel = os.readlink(CURRENT), str(site.folder / "lanewise_driver-1.0.2-py3-none-any.whl")
    changes = (
        'if options.command == "run":',
        'if options.command == "run":\n            raise OSError("broken on purpose")',
    )
    site.play(playbook="lanewise.dra.rollout", rc=2, dra_driver_wheel=str(changed_wheel(site, "1.0.3", changes)))
    report = site.output[site.output.rindex("TASK [Check the state of the rollout]") :]
    assert "failed: 1 node" in report and "did not become healthy with release 1.0.3-" in report
    assert os.readlink(CURRENT) == good and site.info()["ready"] and not cordoned(site)
    assert site.play(playbook="lanewise.dra.rollout", dra_driver_wheel=wheel) == 0
    assert "no changes needed: 1 node" in site.output


def test_a_rollout_stops_without_an_api_server_and_the_next_run_continues(site: Site) -> None:
    newer, good = str(changed_wheel(site, "1.0.4")), os.readlink(CURRENT)
    releases = CURRENT.parent / "releases"
    rollout_ended, api_server_stopped = threading.Event(), threading.Event()

    def stop_api_server() -> None:
        while not list(releases.glob("1.0.4-*")):
            if rollout_ended.wait(0.05):
                return
        site.plane.stop("kube-apiserver")
        api_server_stopped.set()

    thread = threading.Thread(target=stop_api_server)
    thread.start()
    try:
        site.play(playbook="lanewise.dra.rollout", rc=2, dra_driver_wheel=newer)
    finally:
        rollout_ended.set()
        thread.join()
        if api_server_stopped.is_set():
            site.plane.start("kube-apiserver")
            site.plane.wait_ready("kube-apiserver")
    assert api_server_stopped.is_set()
    report = site.output[site.output.rindex("TASK [Check the state of the rollout]") :]
    assert "failed: 1 node" in report, report
    assert os.readlink(CURRENT) == good
    site.plane.wait_for(lambda: site.info()["ready"], "the driver to reach the API server again", 60)
    assert "net1" in site.node.execute("one", "ip", "-brief", "link") and not cordoned(site)

    site.play(playbook="lanewise.dra.rollout", dra_driver_wheel=newer)
    assert "done: 1 node" in site.output and Path(os.readlink(CURRENT)).name.startswith("1.0.4-")


def test_two_builds_of_the_wheel_are_identical(site: Site) -> None:
    (wheel,) = (site.folder / "cache").glob("*/*.whl")
    lock = COLLECTION / "requirements/driver.txt"
    options = {"source": str(COLLECTION), "lock": str(lock), "wheelhouse": str(WHEELHOUSE)}
    before = os.umask(0o077)
    try:
        built = site.module("dra_driver_wheel", dest=str(site.folder / "again"), **options)
    finally:
        os.umask(before)
    assert built["changed"] and Path(built["wheel"]).read_bytes() == wheel.read_bytes()
    again = site.module("dra_driver_wheel", dest=str(site.folder / "again"), **options)
    assert not again["changed"] and again["bundle"] == built["bundle"]
    with tarfile.open(built["bundle"]) as archive:
        wheels = {f"wheelhouse/{path.name}" for path in WHEELHOUSE.glob("*.whl")}
        assert set(archive.getnames()) == {"requirements.txt", wheel.name, *wheels}
        assert {(entry.uid, entry.mode) for entry in archive} == {(0, 0o644)}


def test_remove_uninstalls_the_driver_when_no_pod_needs_it(site: Site) -> None:
    site.node.delete_pod("one")
    site.plane.wait_for(lambda: not site.info()["claims"], "the deletion of the claim", 30)
    assert site.slices()
    assert site.play("--check", dra_driver_state="absent", dra_driver_remove_manifests=True) > 0
    assert "because these nodes publish devices" not in site.output
    assert site.systemctl("is-active", UNIT) == "active" and site.slices()
    site.play(playbook="lanewise.dra.remove", rc=2)
    assert "-e remove_confirm=default" in site.output and site.systemctl("is-active", UNIT) == "active"
    pool = {"name": "another", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": NAME, "nodeName": "another", "pool": pool}
    site.plane.expect("POST", f"{API}/resourceslices", {"metadata": {"name": "another"}, "spec": spec})
    site.play(playbook="lanewise.dra.remove", remove_confirm="default")
    assert "because these nodes publish devices: another." in " ".join(site.output.split())
    assert [resource_slice["spec"]["nodeName"] for resource_slice in site.slices()] == ["another"]
    assert site.plane.request("GET", ACCOUNT)[0] == 200
    site.plane.expect("DELETE", f"{API}/resourceslices/another")
    assert site.play(dra_driver_state="absent", dra_driver_remove_manifests=True) == 1
    assert site.plane.request("GET", ACCOUNT)[0] == 404
    assert site.property("LoadState") == "not-found"
    remaining = ("/opt/lanewise", "/etc/lanewise", "/run/lanewise", f"/var/lib/kubelet/plugins/{NAME}")
    assert not [path for path in remaining if Path(path).exists()]
    assert site.play(dra_driver_state="absent", dra_driver_remove_manifests=True) == 0


def test_force_uninstalls_while_the_api_server_is_down(site: Site) -> None:
    site.play()
    site.plane.stop("kube-apiserver")
    try:
        site.play(rc=2, dra_driver_state="absent")
        assert CURRENT.exists()
        site.play(dra_driver_state="absent", dra_driver_force=True)
    finally:
        site.plane.start("kube-apiserver")
        site.plane.wait_ready("kube-apiserver")
    assert not CURRENT.parent.exists() and site.property("LoadState") == "not-found"


def test_force_uninstalls_while_a_pod_has_a_device(site: Site) -> None:
    site.play()
    fabric_files = [Path(path) for path in ("/etc/lanewise/fabric.json", "/opt/lanewise/fabric/fabric.pyz")]
    for path in fabric_files:
        path.parent.mkdir(exist_ok=True)
        path.touch()
    run_pod(site, "two")
    pins = site.machine.run("find", "/run/lanewise/netns", "-type", "f").stdout.split()
    assert len(pins) == 1
    site.play(rc=2, dra_driver_state="absent")
    site.play(dra_driver_state="absent", dra_driver_force=True)
    assert "/run/lanewise" not in site.machine.run("cat", "/proc/1/mountinfo").stdout
    assert not Path("/run/lanewise").exists() and not site.slices()
    remaining = [sorted(Path(folder).iterdir()) for folder in ("/etc/lanewise", "/opt/lanewise")]
    assert remaining == [fabric_files[:1], [fabric_files[1].parent]]
    assert not list(Path("/var/run/cdi").glob("k8s.lanewise.dev*"))
    assert "net1" in site.node.execute("two", "ip", "-brief", "link")  # until the pod ends
