# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The site playbook over SSH to an sshd on loopback, like a user's first run on real nodes."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.common.places import COLLECTION, COLLECTIONS

SSHD = shutil.which("sshd", path=os.environ.get("PATH", "") + os.pathsep + "/usr/sbin")

pytestmark = pytest.mark.skipif(SSHD is None, reason="sshd is not installed (Debian package openssh-server)")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and server.poll() is None:
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise RuntimeError(f"sshd does not answer on port {port}")


@pytest.fixture(name="site", scope="module")
def _site(tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[Site]:
    folder = tmp_path_factory.mktemp("ssh")
    folder.chmod(0o700)
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    shutil.copy(folder / "user.pub", folder / "authorized")
    port = _free_port()
    host_key = " ".join((folder / "host.pub").read_text(encoding="utf-8").split()[:2])
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {host_key}\n", encoding="utf-8")
    (folder / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized\n"
        "StrictModes no\nUsePAM no\nPasswordAuthentication no\nPidFile none\nPermitRootLogin yes\n",
        encoding="utf-8",
    )
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd needs this folder to separate privileges
    # the path of an ssh control socket has at most 108 bytes, and %C in the test's folder would be longer
    sockets = Path(tempfile.mkdtemp(prefix="ssh-", dir="/tmp"))
    with open(folder / "log", "wb") as log:
        server = subprocess.Popen([str(SSHD), "-D", "-e", "-f", str(folder / "sshd_config")], stderr=log)
    try:
        _wait_for(port, server)
        yield Site(folder, port, sockets)
    finally:
        shutil.rmtree(sockets, ignore_errors=True)
        server.terminate()
        server.wait(timeout=10)


class Site:
    """An inventory of two hosts that are this machine over SSH, and an unreachable host with a port where nothing
    listens."""

    def __init__(self, folder: Path, port: int, sockets: Path) -> None:
        self.folder = folder
        self.report = folder / "report"
        hosts = {name: {"ansible_port": port} for name in ("node-a", "node-b")}
        hosts["unreachable"] = {"ansible_port": _free_port()}
        variables = {
            "ansible_host": "127.0.0.1",
            "ansible_user": getpass.getuser(),
            "ansible_ssh_private_key_file": str(folder / "user"),
            "ansible_ssh_common_args": f"-o UserKnownHostsFile={folder}/known_hosts -o ControlPath={sockets}/%C",
            "ansible_python_interpreter": sys.executable,
            "site_report_dest": str(self.report),
        }
        inventory = {"all": {"hosts": hosts, "vars": variables}}
        (folder / "inventory.json").write_text(json.dumps(inventory), encoding="utf-8")

    def run(self, *arguments: str, rc: int = 0) -> str:
        playbook = Path(sys.executable).with_name("ansible-playbook")
        done = subprocess.run(
            [str(playbook), "-i", str(self.folder / "inventory.json"), "playbooks/site.yml", *arguments],
            cwd=COLLECTION,
            env={**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS), "ANSIBLE_NOCOLOR": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == rc, done.stdout + done.stderr
        return done.stdout + done.stderr

    def status(self) -> dict[str, str]:
        site = json.loads((self.report / "site.json").read_text(encoding="utf-8"))
        return {**{node["name"]: node["status"] for node in site["nodes"]}, **site["absent"]}


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_check_mode_writes_nothing(site: Site) -> None:
    assert "changed=1" in site.run("--check", "--limit", "node-a,node-b")
    assert not site.report.exists()


def test_hosts_are_probed_and_an_unreachable_one_is_reported(site: Site) -> None:
    site.run(rc=2)  # the report is written, and the exit status shows that a host could not be probed
    assert site.status() == {"node-a": "probed", "node-b": "probed", "unreachable": "unreachable"}
    facts = json.loads((site.report / "nodes" / "node-a.json").read_text(encoding="utf-8"))["facts"]
    assert facts["system"]["kernel"] == os.uname().release
    assert {nic["address"] for nic in facts["nics"]} <= set(os.listdir("/sys/bus/pci/devices"))
    assert {interface["name"] for interface in facts["interfaces"]} == set(os.listdir("/sys/class/net")) - {
        "bonding_masters"
    }


def test_a_second_run_changes_nothing(site: Site) -> None:
    before = _files(site.report)
    assert "changed=1" not in site.run(rc=2)
    assert _files(site.report) == before


def test_a_limited_run_keeps_the_facts_of_other_nodes(site: Site) -> None:
    before = _files(site.report)
    output = site.run("--limit", "node-b")
    assert "node-a " not in output
    after = _files(site.report)
    assert {name for name in before if name.startswith("nodes/")} <= set(after)
    assert after["nodes/node-a.json"] == before["nodes/node-a.json"]


def test_a_failed_probe_is_reported_even_if_the_run_has_no_other_node(site: Site) -> None:
    output = site.run("--limit", "node-b", "-e", "topology_root=/nonexistent", rc=2)
    assert "has no folder 'sys'" in output
    assert site.status()["node-b"] == "failed"
    assert (site.report / "nodes" / "node-b.json").exists()


def test_a_subset_of_the_facts_does_not_replace_complete_ones(site: Site) -> None:
    before = _files(site.report)
    output = site.run("--limit", "node-a", "-e", '{"topology_subset": ["system"]}')
    assert "node-a: its facts lack" in " ".join(output.split())
    assert _files(site.report)["nodes/node-a.json"] == before["nodes/node-a.json"]


def test_a_folder_with_another_page_is_refused(site: Site, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("mine", encoding="utf-8")
    site.run("--limit", "node-a", "-e", f"site_report_dest={tmp_path}", rc=2)
    assert (tmp_path / "index.html").read_text(encoding="utf-8") == "mine"
