# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Configuration of containerd and kubelet, checked by the programs that the cluster tests download."""

from __future__ import annotations

import json
import os
import subprocess
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import System
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.converge import Outcome, Refused, converge
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.node import Node
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.undo import Failed
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources.kubelet import Kubelet
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources.runtime import (
    CONTAINERD_DROP_IN,
    Runtime,
    values,
)
from ansible_collections.lanewise.dra.tests.driver.nodes import on_a_node, run
from ansible_collections.lanewise.dra.tests.host.node import run_program

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lanewise-dra"
IMPORTS = 'imports = ["/etc/containerd/conf.d/*.toml"]\n'
CONFIG = """\
version = 3
[plugins."io.containerd.cri.v1.runtime"]
  enable_selinux = true
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      SystemdCgroup = true
[plugins."io.containerd.nri.v1.nri"]
  disable = true
  plugin_registration_timeout = "9s"
"""
#: The configuration of a kubelet without a cluster.
STANDALONE_KUBELET = """\
failCgroupV1: false
authentication: {webhook: {enabled: false}, anonymous: {enabled: true}}
authorization: {mode: AlwaysAllow}
"""


def _program(pattern: str) -> Path:
    found = sorted(CACHE.glob(pattern))
    if not found:
        pytest.skip("the cluster tests have not downloaded their programs yet")
    return found[-1]


class Commands:
    """Runs programs, but only records the arguments of systemctl, because no systemd runs here."""

    def __init__(self) -> None:
        self.systemctl: list[list[str]] = []

    def __call__(self, argv: list[str]) -> tuple[int, str, str]:
        if argv[:2] == ["systemctl", "show"]:
            return 0, "active\n", ""
        if argv[0] == "systemctl":
            self.systemctl.append(argv[1:])
            return 0, "", ""
        return run_program(argv)


def _install_containerd(config: str) -> None:
    """Put containerd in the PATH, and its configuration in /etc/containerd."""
    program = _program("containerd/*/containerd")
    run("mkdir -p /etc/containerd; mount -t tmpfs none /etc/containerd; mount -t tmpfs none /usr/local/sbin")
    run(f"cp {program} /usr/local/sbin/containerd; mkdir /etc/containerd/conf.d")
    Path("/etc/containerd/config.toml").write_text(config)


def _converge(commands: Commands, check_mode: bool = False, **general: t.Any) -> Outcome:
    system = System(run=commands)
    return converge(Node(system, general=general), [Runtime(system)], check_mode)


@pytest.mark.parametrize("imports", ["", IMPORTS])
@on_a_node
def test_nri_is_enabled_and_no_other_value_of_containerd_changes(imports: str) -> None:
    _install_containerd(imports + CONFIG)
    commands = Commands()
    dump = "/usr/local/sbin/containerd config dump"
    before = values(run(dump))
    predicted = _converge(commands, check_mode=True, runtime_cdi=True, runtime_nri=True)
    assert not commands.systemctl
    done = _converge(commands, runtime_cdi=True, runtime_nri=True)
    assert done.after == predicted.after and "running pods keep running" in done.changes[0].interrupts
    assert commands.systemctl == [["try-restart", "containerd.service"]]
    after = values(run(dump))
    assert {key for key in before if before[key] != after.get(key)} == {"plugins.io.containerd.nri.v1.nri:disable"}
    assert after["plugins.io.containerd.nri.v1.nri:disable"] == "false"
    assert any(key.endswith(":SystemdCgroup") and value == "true" for key, value in after.items())
    assert not _converge(commands, runtime_cdi=True, runtime_nri=True).changes
    assert Path(CONTAINERD_DROP_IN).exists() == bool(imports)
    expected = imports + CONFIG if imports else CONFIG.replace("disable = true", "disable = false")
    assert Path("/etc/containerd/config.toml").read_text() == expected
    system = System(run=commands)
    converge(Node(system), [Runtime(system)], wanted={"runtime": done.before["runtime"]})
    assert Path("/etc/containerd/config.toml").read_text() == imports + CONFIG
    assert not Path(CONTAINERD_DROP_IN).exists() and values(run(dump)) == before


def test_cri_o_has_cdi_without_a_change(tmp_path: Path) -> None:
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/crio").touch()
    system = System(str(tmp_path))
    assert not converge(Node(system, general={"runtime_cdi": True}), [Runtime(system)]).changes
    with pytest.raises(Refused, match="DRA drivers need CDI"):
        converge(Node(system, general={"runtime_cdi": False}), [Runtime(system)])
    (tmp_path / "usr/bin/crio").unlink()
    with pytest.raises(Refused, match="neither containerd nor CRI-O"):
        converge(Node(system, general={"runtime_cdi": True}), [Runtime(system)])


@on_a_node
def test_values_that_containerd_has_by_default_need_no_change() -> None:
    _install_containerd("version = 3\n")
    assert not _converge(Commands(), runtime_cdi=True, runtime_nri=True).changes


@on_a_node
def test_a_drop_in_that_changes_other_values_is_rolled_back() -> None:
    _install_containerd(IMPORTS + CONFIG)
    drop_in = Path(CONTAINERD_DROP_IN)
    drop_in.write_text("version = 3\n[plugins.'io.containerd.nri.v1.nri']\n  disable = true\n")
    system = System(run=Commands())
    wrong = f"{drop_in.read_text()}  plugin_registration_timeout = '1s'\n"
    with pytest.raises(Failed, match="would change more.*plugin_registration_timeout"):
        converge(Node(system), [Runtime(system)], wanted={"runtime": {"node": {CONTAINERD_DROP_IN: wrong}}})
    assert "1s" not in drop_in.read_text()


@on_a_node
def test_kubelet_accepts_the_drop_in(tmp_path: Path) -> None:
    """kubelet reads and checks its whole configuration before it connects to the runtime, which is missing here."""
    program = _program("kubernetes/1.37*/kubelet")
    base, folder = tmp_path / "base.yaml", tmp_path / "conf.d"
    folder.mkdir()
    head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
    base.write_text(
        f"{head}{STANDALONE_KUBELET}containerRuntimeEndpoint: unix://{tmp_path}/none.sock\ncgroupDriver: cgroupfs\n"
    )

    def start() -> str:
        """Start kubelet, wait until it fails, and return the last line of its log."""
        arguments = [
            f"--config={base}",
            f"--config-dir={folder}",
            f"--root-dir={tmp_path}/root",
            f"--cert-dir={tmp_path}",
        ]
        done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=120, check=False)
        return done.stderr.splitlines()[-1]

    settings = {
        "cpu_manager_policy": "static",
        "cpu_manager_policy_options": {"full-pcpus-only": "true"},
        "reserved_system_cpus": "0",
        "topology_manager_policy": "single-numa-node",
        "topology_manager_scope": "pod",
        "topology_manager_policy_options": {"prefer-closest-numa-nodes": "true"},
        "memory_manager_policy": "Static",
        "reserved_memory": [{"numaNode": 0, "limits": {"memory": "1124Mi"}}],
    }
    system = System()
    text = next(iter(Kubelet(system).wanted(Node(system, general={"kubelet": settings}))["node"].values()))
    (folder / "90-lanewise.conf").write_text(text)
    error = start()
    assert "none.sock" in error and "invalid configuration" not in error, error
    (folder / "90-lanewise.conf").write_text(json.dumps({**json.loads(text), "topologyManagerPolicy": "near"}))
    error = start()
    assert "near" in error and "invalid configuration" in error, error


@on_a_node
def test_kubelet_settings_are_refused_on_a_node_without_kubelet() -> None:
    system = System(run=Commands())
    with pytest.raises(Refused, match="no kubelet runs|no directory for drop-ins"):
        converge(Node(system, general={"kubelet": {"topology_manager_policy": "restricted"}}), [Kubelet(system)])
