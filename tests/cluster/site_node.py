# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A site with one real node, whose first process is systemd, and an Ansible controller that manages it."""

from __future__ import annotations

import json
import os
import re
import sys
import typing as t
import zipfile
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.cluster.driver import API, NAME
from ansible_collections.lanewise.dra.tests.cluster.node import Node, in_sandbox
from ansible_collections.lanewise.dra.tests.cluster.systemd import SYSTEMD, Machine
from ansible_collections.lanewise.dra.tests.common.places import COLLECTIONS
from environment import CACHE  # tools/cluster.py puts tools/ on sys.path

ANSIBLE_PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")
#: Created beforehand with the playbook driver_wheelhouse, because the sandbox has no network.
WHEELHOUSE = Path(os.environ.get("LANEWISE_WHEELHOUSE") or CACHE / "driver-wheelhouse")
PYTHON = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
UNIT = "lanewise-driver.service"
CURRENT = Path("/opt/lanewise/current")
#: The requirements of these tests.
REQUIRED = [
    pytest.mark.skipif(not ANSIBLE_PLAYBOOK.exists(), reason="needs ansible-core beside this Python"),
    pytest.mark.skipif(not in_sandbox(), reason="needs its own namespaces: 'make test ONLY=node'"),
    pytest.mark.skipif(not Path(SYSTEMD, "systemd").exists(), reason="systemd is not installed"),
    pytest.mark.skipif(not WHEELHOUSE.is_dir(), reason=f"there is no wheelhouse {WHEELHOUSE}"),
]


class SystemdNode(Node):
    """A node whose kubelet and containerd the test starts beside systemd, not as its units."""

    def __init__(self, plane: ControlPlane, machine: Machine) -> None:
        self.machine = machine
        super().__init__(plane)

    def start(self, name: str) -> None:
        run = self.plane.run
        prefix = self.machine.nsenter
        self.plane.run = lambda name, command: run(name, [*prefix, *command])  # type: ignore[method-assign]
        try:
            super().start(name)
        finally:
            del self.plane.run


class Site:
    """An Ansible controller. It runs on the node itself, because connections are not under test."""

    def __init__(self, node: Node, machine: Machine, folder: Path) -> None:
        self.node, self.plane, self.machine, self.folder = node, node.plane, machine, folder
        self.settings: Object = {"virtual_interfaces": ["rail*"], "log_level": "debug"}
        self.output = ""
        self.inventory = folder / "inventory.json"

    def play(self, *arguments: str, rc: int = 0, playbook: str = "lanewise.dra.driver", **variables: t.Any) -> int:
        """Run a playbook with these variables. Returns the number of tasks that changed something."""
        host: Object = {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "dra_driver_kubeconfig": str(self.plane.kubeconfig),
            "dra_driver_cache": str(self.folder / "cache"),
            "dra_driver_wheelhouse": str(WHEELHOUSE),
            "dra_driver_python": PYTHON,
            "dra_driver_settings": self.settings,
            "dra_driver_health_seconds": 20,
            **variables,
        }
        self.inventory.write_text(json.dumps({"all": {"hosts": {self.node.name: host}}}))
        command = [str(ANSIBLE_PLAYBOOK), "-i", str(self.inventory), playbook, *arguments]
        command += [
            "-e",
            "driver_become=false",
            "-e",
            "site_become=false",
            "-e",
            f"site_report_dest={self.folder}/report",
        ]
        hidden = ("ANSIBLE_", "KUBE", "K8S_")
        environment = {key: value for key, value in os.environ.items() if not key.startswith(hidden)}
        paths = os.environ.get("ANSIBLE_COLLECTIONS_PATH", "")
        environment["ANSIBLE_COLLECTIONS_PATH"] = os.pathsep.join(filter(None, [str(COLLECTIONS), paths]))
        environment["ANSIBLE_HOME"] = str(self.folder / "home")
        environment["ANSIBLE_PIPELINING"] = "1"
        environment.pop("PIP_FIND_LINKS", None)
        done = self.machine.run(*command, check=False, cwd=self.folder, env=environment)
        self.output = done.stdout + done.stderr
        print(self.output)  # shown if a test fails
        assert done.returncode == rc, self.output
        changed = re.search(r"changed=(\d+)", done.stdout)
        return int(changed[1]) if changed else 0

    def systemctl(self, *arguments: str) -> str:
        return self.machine.run("systemctl", *arguments, check=False).stdout.strip()

    def property(self, name: str) -> str:
        return self.systemctl("show", UNIT, f"--property={name}", "--value")

    def module(self, name: str, **options: t.Any) -> Object:
        """Run a module of the collection on the node. Returns its result."""
        arguments = self.folder / "arguments.json"
        arguments.write_text(json.dumps({"ANSIBLE_MODULE_ARGS": options}))
        program = f"ansible_collections.lanewise.dra.plugins.modules.{name}"
        result: Object = json.loads(self.machine.run(sys.executable, "-m", program, str(arguments)).stdout)
        return result

    def info(self) -> Object:
        return self.module("dra_driver_info")

    def slices(self) -> list[Object]:
        found = self.plane.expect("GET", f"{API}/resourceslices")["items"]
        return [item for item in found if item["spec"]["driver"] == NAME]


def other_wheel(source: Path, folder: Path, version: str, *changes: tuple[str, str], file: str = "cli.py") -> Path:
    """Build a wheel in `folder`: the wheel `source` with another version, and with changes to one of its files."""
    wheel = folder / f"lanewise_driver-{version}-py3-none-any.whl"
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(wheel, "w") as new:
        for entry in old.infolist():
            content = old.read(entry).decode()
            if entry.filename.endswith("/RECORD"):
                content = "".join(f"{line.split(',')[0]},,\n" for line in content.splitlines())
            if entry.filename == f"lanewise_driver/{file}":
                for before, after in changes:
                    assert before in content
                    content = content.replace(before, after)
            content = content.replace("\nVersion: 1.0.0", f"\nVersion: {version}")
            new.writestr(entry.filename.replace("-1.0.0.", f"-{version}."), content.replace("-1.0.0.", f"-{version}."))
    return wheel
