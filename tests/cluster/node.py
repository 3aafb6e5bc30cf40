# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A real node beside the control plane: kubelet, containerd, runc and a network for pods, in a sandbox.

    with ControlPlane() as plane, Node(plane) as node:
        node.run_pod({...})

Works only inside sandbox.py. Its pods run from an image without files: they use the machine's own programs, which are
mounted below /usr.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import tarfile
import time
import typing as t
import uuid
from pathlib import Path
from types import TracebackType

from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane, Failed
from ansible_collections.lanewise.dra.tests.cluster.sandbox import SANDBOX_VARIABLE, hierarchies, remove_cgroups
from ansible_collections.lanewise.dra.tools.cluster import NODE, programs
from environment import Missing  # tools/cluster.py has put its folder on the path

ADDRESS = "192.0.2.10"  # a documentation address, RFC 5737
GATEWAY = "192.0.2.1"
POD_SUBNET = "198.51.100.0/24"
IMAGE = "lanewise.dev/tools:1"
SANDBOX_IMAGE = "lanewise.dev/pause:1"
ROOT = Path("/var/lib/kubelet")
SOCKET = Path("/run/containerd/containerd.sock")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
TIMEOUT_SECONDS = 120  # after an API server outage, its clients may wait a minute before they reconnect


def in_sandbox() -> bool:
    """Whether this process runs in a sandbox."""
    return SANDBOX_VARIABLE in os.environ


class Node:
    """kubelet and containerd of one node. The node is Ready when the constructor returns. Both programs end with the
    control plane.

    gates: feature gates of kubelet. Raises environment.Missing if programs are missing, and Failed.
    """

    def __init__(self, plane: ControlPlane, name: str = "node-0", gates: t.Mapping[str, bool] | None = None) -> None:
        if not in_sandbox():
            raise Failed("a node can run only in a sandbox: tests/cluster/sandbox.py")
        start = time.monotonic()
        self.plane = plane
        self.name = name
        self.programs = programs(plane.minor, *NODE, "kubectl", build=False)
        if not shutil.which("runc"):  # not built here: it contains C code and needs libseccomp
            raise Missing("runc is not installed (Debian package runc)")
        self.folder = Path(os.environ[SANDBOX_VARIABLE])
        self._network()
        self._containerd()
        self._kubelet(dict(gates or {}))
        self._start_containerd()
        for image, files in ((SANDBOX_IMAGE, {"pause": self.programs["pause"]}), (IMAGE, {})):
            self._import(image, files)
        self.start("kubelet")
        self.wait_ready()
        self.seconds = time.monotonic() - start

    def __enter__(self) -> Node:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop kubelet and containerd. Remaining containers end with the sandbox."""
        for name in ("kubelet", "containerd"):
            if name in self.plane.pids:
                self.plane.stop(name)

    # starting

    def _network(self) -> None:
        """Create an uplink with the default route, which kubelet and the driver expect on a node."""
        for command in (
            "link add uplink type veth peer name outside",
            f"address add {ADDRESS}/24 dev uplink",
            "link set uplink up",
            "link set outside up",
            f"route add default via {GATEWAY} dev uplink",
        ):
            ip(command)
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")

    def _containerd(self) -> None:
        plugins = self.folder / "cni-bin"
        plugins.mkdir()
        for name in ("ptp", "host-local", "loopback"):
            (plugins / name).symlink_to(self.programs[name])
        network = {
            "cniVersion": "1.0.0",
            "name": "pods",
            "plugins": [{"type": "ptp", "ipam": {"type": "host-local", "ranges": [[{"subnet": POD_SUBNET}]]}}],
        }
        Path("/etc/cni/net.d").mkdir(parents=True)
        Path("/etc/cni/net.d/10-pods.conflist").write_text(json.dumps(network))
        programs_folder = self.folder / "bin"  # containerd looks for its shim and runc along PATH
        programs_folder.mkdir()
        (programs_folder / "containerd-shim-runc-v2").symlink_to(self.programs["containerd-shim-runc-v2"])
        self._path = f"{programs_folder}:{os.environ['PATH']}"
        self._configure_containerd()

    def _configure_containerd(self, *lines: str) -> None:
        runtime = "plugins.'io.containerd.cri.v1.runtime'"
        more = "\n".join(lines)
        (self.folder / "containerd.toml").write_text(
            f"""version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
oom_score = 0
[grpc]
address = "{SOCKET}"
[plugins.'io.containerd.cri.v1.images']
snapshotter = "native"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{SANDBOX_IMAGE}"
[{runtime}]
disable_apparmor = true
restrict_oom_score_adj = true
{more}
[{runtime}.cni]
bin_dirs = ["{self.folder / "cni-bin"}"]
conf_dir = "/etc/cni/net.d"
[{runtime}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[{runtime}.containerd.runtimes.runc.options]
SystemdCgroup = false
"""
        )

    def _kubelet(self, gates: dict[str, bool]) -> None:
        authority = self.plane.authority
        self.plane.write_kubeconfig(f"system:node:{self.name}", "system:nodes", path=self.folder / "kubelet.kubeconfig")
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": ADDRESS,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": False},
                "x509": {"clientCAFile": str(authority.certificate)},
            },
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.folder.name}",
            "clusterDomain": "cluster.local",
            "containerRuntimeEndpoint": f"unix://{SOCKET}",
            "enforceNodeAllocatable": ["pods"],
            "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "failCgroupV1": False,
            "failSwapOn": False,
            "featureGates": gates,
            "localStorageCapacityIsolation": False,
            "oomScoreAdj": 0,
            "podLogsDir": "/var/log/pods",
            "registerWithTaints": [],
            "runtimeRequestTimeout": "30s",
            "syncFrequency": "5s",
        }
        (self.folder / "kubelet.json").write_text(json.dumps(config))
        for top in hierarchies():
            (top / self.folder.name).mkdir(exist_ok=True)
            controllers = top / "cgroup.controllers"  # version 2
            if controllers.exists():
                enabled = " ".join(f"+{name}" for name in controllers.read_text().split())
                (top / "cgroup.subtree_control").write_text(enabled)
        # version 1: a new cpuset has no processors, and accepts no process until some are assigned
        cpuset = Path("/sys/fs/cgroup/cpuset")
        for name in ("cpuset.cpus", "cpuset.mems"):
            if (cpuset / name).exists():
                (cpuset / self.folder.name / name).write_text((cpuset / name).read_text())

    def start(self, name: str) -> None:
        """Start kubelet or containerd, without waiting until it is ready."""
        arguments = {
            "containerd": ["--config", str(self.folder / "containerd.toml")],
            "kubelet": [
                f"--kubeconfig={self.folder / 'kubelet.kubeconfig'}",
                f"--config={self.folder / 'kubelet.json'}",
                f"--hostname-override={self.name}",
                f"--node-ip={ADDRESS}",
                f"--root-dir={ROOT}",
                f"--cert-dir={ROOT / 'pki'}",
                "--v=3",  # logs which of a driver's services kubelet uses
            ],
        }[name]
        # `run` cannot set the environment: env(1) sets PATH, where containerd looks for its shim and for runc
        self.plane.run(name, ["env", f"PATH={self._path}", str(self.programs[name]), *arguments])

    def stop(self, name: str) -> None:
        """Kill kubelet or containerd; containers stay."""
        self.plane.stop(name)

    def crash(self) -> None:
        """Simulate a power failure, as far as possible here: kill kubelet, containerd and all containers, remove their
        mounts, empty /run and change the kernel's boot ID. Network namespaces that nothing else holds disappear with
        the interfaces in them."""
        for name in ("kubelet", "containerd"):
            self.stop(name)
        while pids := self._container_processes():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        remove_cgroups(f"{self.folder.name}/kubepods")
        points = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for point in reversed(points):
            if point.startswith(("/run/", f"{ROOT}/")):
                # unmounting a shared mount may already have unmounted this one
                subprocess.run(["umount", "--lazy", "--quiet", point], check=False)
        for path in Path("/run").iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        boot_id = self.folder / "boot_id"
        if boot_id.exists():
            subprocess.run(["umount", str(BOOT_ID)], check=True)
        boot_id.write_text(f"{uuid.uuid4()}\n")
        subprocess.run(["mount", "--bind", str(boot_id), str(BOOT_ID)], check=True)

    def boot(self) -> None:
        """Start containerd and kubelet after a crash. Raises Failed."""
        self._start_containerd()
        self.start("kubelet")

    def reconfigure_containerd(self, *lines: str) -> None:
        """Restart containerd with these extra lines in the runtime section of its configuration. Containers keep
        running. Raises Failed."""
        self.stop("containerd")
        self._configure_containerd(*lines)
        self._start_containerd()

    def _start_containerd(self) -> None:
        self.start("containerd")
        self.plane.wait_for(self._containerd_answers, "containerd", TIMEOUT_SECONDS)

    def _container_processes(self) -> set[int]:
        """Processes in containers, and their shims."""
        groups = [path for top in hierarchies() for path in (top / self.folder.name).rglob("cgroup.procs")]
        found = {int(pid) for path in groups for pid in path.read_text().split()}
        shim = os.path.realpath(self.programs["containerd-shim-runc-v2"])
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.readlink(process / "exe") == shim:
                    found.add(int(process.name))
        return found - {0}

    def _containerd_answers(self) -> bool:
        self.plane.check()
        return SOCKET.exists() and self._ctr("version", check=False).returncode == 0

    def _ctr(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        command = [str(self.programs["ctr"]), "--address", str(SOCKET), "--namespace", "k8s.io", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if check and done.returncode:
            raise Failed(f"ctr {' '.join(arguments)}: {done.stderr}")
        return done

    def _import(self, image: str, files: t.Mapping[str, Path]) -> None:
        archive = self.folder / "image.tar"
        archive.write_bytes(_image(image, files))
        self._ctr("images", "import", str(archive))
        archive.unlink()

    def wait_ready(self) -> None:
        """Wait until the API server reports the node as Ready. Raises Failed."""

        def ready() -> bool:
            self.plane.check()
            status, node = self.plane.request("GET", f"/api/v1/nodes/{self.name}")
            conditions = node["status"].get("conditions", ()) if status == 200 else ()
            return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)

        self.plane.wait_for(ready, f"node {self.name} to be Ready", TIMEOUT_SECONDS)
        self.plane.request("PATCH", f"/api/v1/nodes/{self.name}", {"spec": {"taints": None}})

    # using

    def pod(self, name: str, **spec: t.Any) -> dict[str, t.Any]:
        """A pod with one container that sleeps and has the machine's programs. `spec` is merged into the pod's spec."""
        mounts = [{"name": "usr", "mountPath": "/usr", "readOnly": True}]
        container = {
            "name": "main",
            "image": IMAGE,
            "imagePullPolicy": "Never",
            "command": ["/usr/bin/sleep", "infinity"],
            "volumeMounts": mounts,
            "securityContext": {"privileged": False, "capabilities": {"add": ["NET_ADMIN", "NET_RAW"]}},
        }
        base = {
            "nodeName": self.name,
            "containers": [container],
            "volumes": [{"name": "usr", "hostPath": {"path": "/usr"}}],
            "terminationGracePeriodSeconds": 1,
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
        }
        if "resourceClaims" in spec:  # the scheduler has to allocate them
            del base["nodeName"]
            container["resources"] = {"claims": [{"name": entry["name"]} for entry in spec["resourceClaims"]]}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {**base, **spec},
        }

    def run_pod(self, pod: dict[str, t.Any], seconds: float = TIMEOUT_SECONDS) -> dict[str, t.Any]:
        """Create a pod, and wait until it is ready. Raises Failed, with the pod's events."""
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods"
        self.plane.expect("POST", path, pod)
        name = pod["metadata"]["name"]
        try:
            ready: dict[str, t.Any] = self.plane.wait_for(lambda: self._ready(f"{path}/{name}"), f"pod {name}", seconds)
        except Failed as failure:
            raise Failed(f"{failure}\n" + "\n".join(self.events(name))) from None
        return ready

    def _ready(self, path: str) -> dict[str, t.Any] | None:
        pod = self.plane.expect("GET", path)
        if pod["status"]["phase"] == "Failed":
            raise Failed(f"pod {pod['metadata']['name']} failed: {json.dumps(pod['status'])}")
        ready = any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", ()))
        return pod if ready else None

    def events(self, name: str) -> list[str]:
        """The events about an object, as `REASON: MESSAGE`."""
        found = self.plane.expect("GET", "/api/v1/namespaces/default/events")["items"]
        return [f"{e['reason']}: {e['message']}" for e in found if e["involvedObject"]["name"] == name]

    def delete_pod(self, name: str, seconds: float = TIMEOUT_SECONDS, wait: bool = True) -> None:
        """Delete a pod, and wait until it no longer exists. Without `wait`, a missing pod is not an error."""
        path = f"/api/v1/namespaces/default/pods/{name}"
        status, answer = self.plane.request("DELETE", path)
        if status >= 300 and (wait or status != 404):
            raise Failed(f"pod {name} is not deleted: {status} {answer}")
        if wait:
            self.plane.wait_for(
                lambda: self.plane.request("GET", path)[0] == 404, f"the deletion of pod {name}", seconds
            )

    def execute(self, pod: str, *command: str, container: str = "main") -> str:
        """Run a command in a pod's container, which has the machine's /usr. Returns its output. Raises Failed."""
        program = [str(self.programs["kubectl"]), "--kubeconfig", str(self.plane.kubeconfig), "exec", pod]
        done = subprocess.run(
            [*program, "-c", container, "--", *command], capture_output=True, text=True, check=False, timeout=60
        )
        if done.returncode:
            raise Failed(f"{' '.join(command)} in {pod}: {done.stdout}{done.stderr}")
        return done.stdout


def ip(command: str) -> str:
    """Run `ip COMMAND` in the node's network namespace. Returns its output. Raises Failed."""
    done = subprocess.run(["ip", *command.split()], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"ip {command}: {done.stderr}")
    return done.stdout


def _image(name: str, files: t.Mapping[str, Path]) -> bytes:
    """An OCI image as a tar archive. Its root has only these files, and links to the programs below /usr."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for folder in ("usr", "proc", "sys", "dev", "etc", "tmp", "run", "var"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        for link in ("bin", "sbin", "lib", "lib64"):
            entry = tarfile.TarInfo(link)
            entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{link}"
            tar.addfile(entry)
        for path, source in files.items():
            entry = tarfile.TarInfo(path)
            entry.mode, content = 0o755, source.read_bytes()
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    plain = layer.getvalue()
    packed = gzip.compress(plain, mtime=0)
    config = {
        "architecture": _architecture(),
        "os": "linux",
        "config": {"Entrypoint": [f"/{next(iter(files))}"]} if files else {},
        "rootfs": {"type": "layers", "diff_ids": [_digest(plain)]},
    }
    blobs = {_digest(packed): packed}
    content = json.dumps(config).encode()
    blobs[_digest(content)] = content
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": _descriptor("application/vnd.oci.image.config.v1+json", content),
        "layers": [_descriptor("application/vnd.oci.image.layer.v1.tar+gzip", packed)],
    }
    content = json.dumps(manifest).encode()
    blobs[_digest(content)] = content
    index_entry = _descriptor(manifest["mediaType"], content)
    index_entry["annotations"] = {"io.containerd.image.name": name}
    index = {"schemaVersion": 2, "manifests": [index_entry]}
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        parts = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}', "index.json": json.dumps(index).encode()}
        parts.update({f"blobs/{digest.replace(':', '/')}": blob for digest, blob in blobs.items()})
        for path, blob in parts.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(blob)
            tar.addfile(entry, io.BytesIO(blob))
    return archive.getvalue()


def _architecture() -> str:
    machine = os.uname().machine
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _descriptor(kind: t.Any, blob: bytes) -> dict[str, t.Any]:
    return {"mediaType": kind, "digest": _digest(blob), "size": len(blob)}
