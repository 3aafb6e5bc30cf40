# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A lab node in a cluster: kubelet, containerd and the driver run as its systemd services. The control plane runs on
the host, and the node reaches it through SSH.

    with one_member() as (lab, node):
        driver = Service(node)

Its pods run from an image without files, and use the node's programs below /usr.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import typing as t
from pathlib import Path

import jinja2
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.tests.cluster import driver as installed
from ansible_collections.lanewise.dra.tests.cluster import node as sandboxed
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane, Failed
from ansible_collections.lanewise.dra.tests.common.places import COLLECTION
from ansible_collections.lanewise.dra.tests.driver import ipv6
from ansible_collections.lanewise.dra.tests.lab.node import Lab, Shape
from ansible_collections.lanewise.dra.tests.lab.node import Node as Machine
from ansible_collections.lanewise.dra.tools import lab as artifacts
from ansible_collections.lanewise.dra.tools.cluster import CONTROL_PLANE, NODE, minors, programs
from environment import Missing  # tools/lab.py has put its folder on the path

#: Kubelet, containerd and the driver need more memory than a node's default.
SHAPE = Shape(memory=2048)
ADDRESS = "10.0.2.15"  # of mgmt0, see image.sh
#: Seconds for operations that take one or two seconds without emulation.
TIMEOUT = 300
FOLDER = "/opt/lab"
SOCKET = "/run/containerd/containerd.sock"
PYTHON = "3.13"  # of Debian trixie
_UNITS = ("lab-containerd", "lab-kubelet", "lanewise-driver")
_SITE = "/opt/lanewise/site"
#: Like the console script of the driver's wheel.
_PROGRAM = f"""#!/usr/bin/python3
import sys
sys.path.insert(0, {_SITE!r})
from lanewise_driver.cli import main
sys.exit(main())
"""
_CONTAINERD = f"""version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
address = "{SOCKET}"
[plugins.'io.containerd.cri.v1.images']
snapshotter = "native"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{sandboxed.SANDBOX_IMAGE}"
[plugins.'io.containerd.cri.v1.runtime']
enable_cdi = true
cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["{FOLDER}/bin"]
conf_dir = "{FOLDER}/cni"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
SystemdCgroup = true
"""
# GOMAXPROCS: QEMU emulates all CPUs in one thread, so a CPU that spins for a lock of Go's runtime delays the CPU that
# holds it. With GOMAXPROCS above 1, kubelet alone used two fifths of a node's CPU time.
_UNIT = """[Unit]
After={after}
StartLimitIntervalSec=0
[Service]
Type={kind}
Environment=PATH={folder}/bin:/usr/sbin:/usr/bin GOMAXPROCS=1
ExecStart={command}
Restart=always
RestartSec=1
Delegate=yes
KillMode=process
LimitNOFILE=65536
[Install]
WantedBy=multi-user.target
"""


def packages() -> Path:
    """A folder with the driver's dependencies for the node's Python. They are downloaded once. Raises
    environment.Missing."""
    lock = COLLECTION / "requirements" / "driver.txt"

    def fetch(folder: Path) -> None:
        kinds = [f"--platform=manylinux{kind}_x86_64" for kind in ("_2_28", "_2_17", "2014")]
        command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", *kinds]
        command += [f"--python-version={PYTHON}", "--implementation=cp", "--only-binary=:all:", "--require-hashes"]
        done = subprocess.run(
            [*command, "--no-compile", f"--target={folder}", "-r", str(lock)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise Missing(f"cannot get the driver's packages: {done.stderr.strip()}")

    return artifacts.cached("driver", [PYTHON, lock], fetch)


class Member(sandboxed.Node):
    """kubelet and containerd of a lab node. The node is Ready when the constructor returns, and ends with the lab.

    Raises environment.Missing if programs are missing, and Failed.
    """

    def __init__(self, plane: ControlPlane, machine: Machine) -> None:
        start = time.monotonic()
        self.plane = plane
        self.machine = machine
        self.name = machine.name
        self.programs = programs(plane.minor, *NODE, build=False)
        with tempfile.TemporaryDirectory(dir=machine.folder) as folder:
            os.chmod(folder, 0o755)
            self.folder = Path(folder)
            self._files()
            machine.copy(self.folder, FOLDER)
        self.connect()
        # otherwise the CNI plugin ptp sets it with the first pod, which changes a setting of every interface
        machine.ssh("echo net.ipv4.ip_forward=1 > /etc/sysctl.d/pods.conf; sysctl --quiet --system")
        machine.ssh(f"systemctl enable --quiet {FOLDER}/units/*.service && systemctl start lab-containerd")
        for image in ("pause", "tools"):
            self._ctr("images", "import", f"{FOLDER}/{image}.tar")
        machine.ssh("systemctl start lab-kubelet")
        self.wait_ready()
        self.seconds = time.monotonic() - start

    def _files(self) -> None:
        for name in ("bin", "cni", "units"):
            (self.folder / name).mkdir(mode=0o755)
        for name in NODE:
            (self.folder / "bin" / name).symlink_to(self.programs[name])
        ipam = {"type": "host-local", "ranges": [[{"subnet": sandboxed.POD_SUBNET}]]}
        network = {"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "ptp", "ipam": ipam}]}
        (self.folder / "cni" / "10-pods.conflist").write_text(json.dumps(network))
        (self.folder / "containerd.toml").write_text(_CONTAINERD)
        authority = self.plane.authority
        (self.folder / "ca.pem").write_bytes(authority.certificate.read_bytes())
        user = f"system:node:{self.name}"
        self.plane.write_kubeconfig(user, "system:nodes", path=self.folder / "kubelet.kubeconfig")
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": False},
                "x509": {"clientCAFile": f"{FOLDER}/ca.pem"},
            },
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "systemd",
            "containerRuntimeEndpoint": f"unix://{SOCKET}",
            # less periodic work, which would use most of an emulated CPU
            "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
            "localStorageCapacityIsolation": False,
            "makeIPTablesUtilChains": False,
            "nodeStatusReportFrequency": "1m",
            "nodeStatusUpdateFrequency": "30s",
            "runtimeRequestTimeout": "5m",
            "syncFrequency": "10s",
            "volumeStatsAggPeriod": "1h",
        }
        (self.folder / "kubelet.json").write_text(json.dumps(config))
        kubelet = [f"{FOLDER}/bin/kubelet", f"--kubeconfig={FOLDER}/kubelet.kubeconfig"]
        kubelet += [f"--config={FOLDER}/kubelet.json", f"--hostname-override={self.name}", f"--node-ip={ADDRESS}"]
        commands = {
            "lab-containerd": (
                "network.target",
                "notify",
                f"{FOLDER}/bin/containerd --config {FOLDER}/containerd.toml",
            ),
            "lab-kubelet": ("lab-containerd.service", "simple", shlex.join([*kubelet, "--housekeeping-interval=1m"])),
        }
        for name, (after, kind, command) in commands.items():
            unit = _UNIT.format(after=after, kind=kind, command=command, folder=FOLDER)
            (self.folder / "units" / f"{name}.service").write_text(unit)
        images: dict[str, tuple[str, dict[str, Path]]] = {
            "pause": (sandboxed.SANDBOX_IMAGE, {"pause": self.programs["pause"]}),
            "tools": (sandboxed.IMAGE, {}),
        }
        for name, (image, files) in images.items():
            (self.folder / f"{name}.tar").write_bytes(sandboxed._image(image, files))

    def connect(self) -> None:
        """Forward the API server's port, so that the node reaches it under the same address as this host."""
        self.machine.reach(self.plane.ports["kube-apiserver"])

    def stay_connected(self) -> None:
        """Reconnect after each restart of the machine, until the control plane ends."""
        port = self.plane.ports["kube-apiserver"]
        where = f"127.0.0.1:{port}:127.0.0.1:{port}"
        command = shlex.split(self.machine.ssh_command)
        subprocess.run([*command, "-O", "cancel", "-R", where], check=True, capture_output=True)
        # a separate connection, as Ansible ends the shared one
        forward = [*command, "-S", "none", "-N", "-R", where, "-oExitOnForwardFailure=yes", "-oServerAliveInterval=10"]
        self.plane.run(f"{self.name}-connection", ["sh", "-c", f"while :; do {shlex.join(forward)}; sleep 2; done"])

    def reboot(self) -> None:
        """Restart the machine cleanly, without waiting for its pods."""
        self.machine.reboot()
        self.connect()

    def start(self, name: str) -> None:
        self.machine.ssh(f"systemctl start lab-{name}")

    def stop(self, name: str) -> None:
        """Kill a service with SIGKILL, without a restart. Containers keep running."""
        self.machine.ssh(f"systemctl kill --signal=KILL lab-{name}; systemctl stop lab-{name}")

    def close(self) -> None:
        """Do nothing: kubelet and containerd end with the lab."""

    def _ctr(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        command = shlex.join([f"{FOLDER}/bin/ctr", "--address", SOCKET, "--namespace", "k8s.io", *arguments])
        reported = self.machine.ssh(command, check=check)
        return subprocess.CompletedProcess(command, 0, reported)

    def wait_ready(self) -> None:
        def ready() -> bool:
            self.plane.check()
            self.machine.check()
            status, node = self.plane.request("GET", f"/api/v1/nodes/{self.name}")
            conditions = node["status"].get("conditions", ()) if status == 200 else ()
            return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)

        try:
            self.plane.wait_for(ready, f"node {self.name} to be Ready", TIMEOUT)
        except Failed as failure:
            raise Failed(f"{failure}\n{self.journal()}") from None
        self.plane.request("PATCH", f"/api/v1/nodes/{self.name}", {"spec": {"taints": None}})

    def journal(self, lines: int = 40) -> str:
        """The last lines of its services' journals."""
        units = " ".join(f"-u {name}" for name in _UNITS)
        return self.machine.ssh(f"journalctl --no-pager -o short-iso -n {lines} {units}", check=False)

    def run_pod(self, pod: Object, seconds: float = TIMEOUT) -> Object:
        try:
            return super().run_pod(pod, seconds)
        except Failed as failure:
            raise Failed(f"{failure}\n{self.journal()}") from None

    def delete_pod(self, name: str, seconds: float = TIMEOUT, wait: bool = True) -> None:
        super().delete_pod(name, seconds, wait)

    def execute(self, pod: str, *command: str, container: str = "main") -> str:
        """Run a command in a pod's container, which has the node's /usr. Returns its output. Raises lab.node.Failed."""
        labels = f'labels."io.kubernetes.pod.name"=={pod},labels."io.kubernetes.container.name"=={container}'
        ctr = f"{FOLDER}/bin/ctr --address {SOCKET} --namespace k8s.io"
        return self.machine.ssh(
            f"""tasks=$({ctr} tasks ls)
for container in $({ctr} containers ls -q {shlex.quote(labels)}); do
    if echo "$tasks" | grep -q "^$container .*RUNNING"; then
        exec {ctr} tasks exec --exec-id run-$$ $container {shlex.join(command)}
    fi
done
echo 'no container of {pod} runs' >&2; exit 1"""
        )


@contextlib.contextmanager
def one_member() -> t.Iterator[tuple[Lab, Member]]:
    """A lab with one node that is a cluster member. Raises Missing if programs or packages are missing."""
    programs(minors()[0], *CONTROL_PLANE, *NODE)
    with ControlPlane() as plane, Lab() as lab:
        [machine] = lab.start(1, shape=SHAPE)
        yield lab, Member(plane, machine)


class Service(installed.Driver):
    """The driver as a service of `node`, with the role's unit and its restrictions."""

    def __init__(self, node: Member, settings: Object | None = None) -> None:
        self.node = node
        self.plane = node.plane
        self.machine = node.machine
        self._apply_manifests()
        self.settings: Object = {
            "node_name": node.name,
            "kubeconfig": str(installed.FOLDER / "kubeconfig"),
            "token_file": str(installed.FOLDER / "token"),
            **(settings or {}),
        }
        self._put(installed.FOLDER / "kubeconfig", self._kubeconfig(f"{FOLDER}/ca.pem"))
        self._put(installed.FOLDER / "token", self._token())
        self.write_settings()
        self.machine.copy(packages(), _SITE)
        # grpcio needs it, and the small image lacks it; it is in QEMU's libraries
        self.machine.copy(artifacts.tools() / artifacts.LIBRARIES / "libstdc++.so.6", f"/{artifacts.LIBRARIES}")
        self.copy_program()
        role = COLLECTION / "roles" / "dra_driver"
        unit = jinja2.Template((role / "templates" / "lanewise-driver.service.j2").read_text())
        text = unit.render(ansible_managed="the lab's", __dra_driver_folder="/opt/lanewise")
        self._put(Path("/etc/systemd/system/lanewise-driver.service"), text, "644")
        # during a boot, all services share one emulated CPU
        longer = f"[Service]\nTimeoutStartSec={2 * TIMEOUT}\n"
        self._put(Path("/etc/systemd/system/lanewise-driver.service.d/lab.conf"), longer, "644")
        self._put(Path("/opt/lanewise/current/bin/lanewise-driver"), _PROGRAM, "755")
        self.machine.ssh("systemctl daemon-reload; systemctl enable --quiet lanewise-driver")
        self.start()

    def copy_program(self) -> None:
        """Copy the current code of the driver to the node."""
        for source, name in (
            ("driver", ""),
            ("plugins/module_utils/dra", "/dra"),
            ("plugins/module_utils/topology", "/topology"),
            ("plugins/module_utils/uplinks", "/uplinks"),
        ):
            self.machine.copy(COLLECTION / source, f"{_SITE}/lanewise_driver{name}")
        version = re.search(r'^version = "([^"]+)"', (COLLECTION / "pyproject.toml").read_text(), re.MULTILINE)
        assert version
        metadata = f"Metadata-Version: 2.1\nName: lanewise-driver\nVersion: {version[1]}\n"
        self._put(Path(_SITE, f"lanewise_driver-{version[1]}.dist-info", "METADATA"), metadata, "644")

    def _put(self, path: Path, content: str, mode: str = "600") -> None:
        self.machine.ssh(f"mkdir -p {path.parent} && cat > {path} && chmod {mode} {path}", stdin=content)

    def write_settings(self, **changes: t.Any) -> None:
        self.settings.update(changes)
        self._put(installed.FOLDER / "driver.yml", json.dumps(self.settings))

    def start(self, *before: str) -> None:
        self.machine.ssh("systemctl start lanewise-driver")

    def kill(self) -> None:
        """Kill the driver with SIGKILL. systemd restarts it."""
        self.machine.ssh("systemctl kill --signal=KILL lanewise-driver")

    def stop(self) -> None:
        """Kill the driver with SIGKILL, without a restart."""
        self.machine.ssh("systemctl kill --signal=KILL lanewise-driver; systemctl stop lanewise-driver")

    def reasons(self) -> list[str]:
        ask = r"exec 3<>/dev/tcp/127.0.0.1/9178 && printf 'GET /readyz HTTP/1.0\r\n\r\n' >&3 && cat <&3"
        answer = self.machine.ssh(f"bash -c {shlex.quote(ask)} 2>&1", check=False)
        head, _unused, body = answer.replace("\r", "").partition("\n\n")
        return [] if " 200 " in head.partition("\n")[0] else (body or head or "no answer").splitlines()

    def wait_ready(self, seconds: float = TIMEOUT) -> None:
        def ready() -> bool:
            self.machine.check()
            time.sleep(0.5)
            return not self.reasons()

        try:
            self.plane.wait_for(ready, "the driver to be ready", seconds)
        except Failed as failure:
            raise Failed(f"{failure}: {self.reasons()}\n{self.log()}") from None

    def log(self) -> str:
        return self.machine.ssh("journalctl --no-pager -o cat -u lanewise-driver")

    def claim_files(self) -> list[str]:
        run = "/run/lanewise/netns /run/lanewise/attached /run/lanewise/early"
        places = f"{installed.STATE}/state {installed.STATE}/metadata {run}"
        found = self.machine.ssh(
            f"find {places} -mindepth 1 -maxdepth 1 2>/dev/null; ls -d /var/run/cdi/k8s.lanewise.dev* 2>/dev/null",
            check=False,
        )
        return found.splitlines()

    def wait_released(self, seconds: float = TIMEOUT) -> None:
        def clear() -> bool:
            time.sleep(0.5)
            return not self.claim_files()

        try:
            self.plane.wait_for(clear, "the claims' files to be removed", seconds)
        except Failed as failure:
            raise Failed(f"{failure}: {self.claim_files()}\n{self.log()}") from None


def host_state(machine: Machine, name: str, pf: str = "") -> str:
    """Everything that the node's programs report about an interface, without counters and indexes. With `pf`, also the
    VF settings of that PF's interface."""
    ipv6.wait(lambda words: machine.ssh(f"ip {words}"), name, pause=0.2)
    command = f"""ip -json -details link show dev {name}; ip -json address show dev {name}
for family in -4 -6; do
    ip -json $family route show table all dev {name}; ip -json $family rule
    ip -json $family neighbour show nud permanent dev {name}
done"""
    shown: list[t.Any] = []
    volatile = ("ifindex", "stats64", "link_index", "valid_life_time", "preferred_life_time", "tentative")
    for line in machine.ssh(command).splitlines():
        for entry in json.loads(line):
            for key in volatile:
                entry.pop(key, None)
            # of a VF, this is the address that the PF assigned before the VF's last reset
            entry.pop("permaddr", None)
            # it has a qdisc only after it was up once, and a reset sets a function up
            if "UP" not in entry.get("flags", ["UP"]):
                entry.pop("qdisc", None)
            for address in entry.get("addr_info", ()):
                for key in volatile:
                    address.pop(key, None)
            shown.append(entry)
    tools = f"ethtool -k {name}; ethtool -g {name}; ethtool -l {name}; "
    tools += f"ip -brief link show up dev {name} | grep -q . && tc qdisc show dev {name}; "
    tools += f"grep -s . /proc/sys/net/ipv[46]/conf/{name}/* /proc/sys/net/ipv[46]/neigh/{name}/*"
    shown.append(machine.ssh(tools, check=False).splitlines())
    if pf:
        shown.append(json.loads(machine.ssh(f"ip -json -details link show dev {pf}"))[0]["vfinfo_list"])
    return json.dumps(shown, indent=1, sort_keys=True)
