# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A real Kubernetes control plane on loopback. It is ready in seconds, and leaves nothing behind.

    with ControlPlane("1.37") as plane:
        status, answer = plane.request("GET", "/version")

See docs/cluster.md. There are no kubelets: nodes are objects that `add_node` creates, and a pod that the scheduler has
bound stays Pending. node.py adds a real node.
"""

from __future__ import annotations

import base64
import json
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import typing as t
from pathlib import Path
from types import TracebackType

from ansible_collections.lanewise.dra.tests.cluster import supervisor
from ansible_collections.lanewise.dra.tests.cluster.authority import Authority, write
from ansible_collections.lanewise.dra.tests.cluster.client import Client
from ansible_collections.lanewise.dra.tools.cluster import minors, programs

NODE_GRACE_SECONDS = 20  # without a renewed lease, after which a node is lost if `node_lifecycle` is on
READY_TIMEOUT_SECONDS = 120  # for one program to become ready, on a busy machine
RESOURCE_VERSIONS = ("v1", "v1beta2", "v1beta1", "v1alpha3")  # of resource.k8s.io; all pinned servers have all of them
ADMIN = ("lanewise-admin", "system:masters")


class Failed(Exception):
    """Something did not start, ended or did not happen in time, or a request failed. The message says which. For a
    program of the control plane, it contains the end of the program's log."""


def free_ports(number: int) -> list[int]:
    """Free TCP ports of 127.0.0.1, below the range that the kernel uses for outgoing connections."""
    sockets: list[socket.socket] = []
    try:
        while len(sockets) < number:
            probe = socket.socket()
            try:
                probe.bind(("127.0.0.1", random.randint(20000, 29999)))
            except OSError:
                probe.close()
            else:
                sockets.append(probe)
        return [probe.getsockname()[1] for probe in sockets]
    finally:
        for probe in sockets:
            probe.close()


class ControlPlane:
    """etcd, kube-apiserver and, unless switched off, kube-scheduler and kube-controller-manager.

    Stop it with `close`, or use it as a context manager. Its programs also end when this process dies.

    version: Kubernetes minor version, such as `1.37`; by default the newest pinned one.
    gates: feature gates of every program.
    runtime_config: APIs to switch on or off, such as `{"api/beta": True}`. All versions of resource.k8s.io are on.
    flags: more flags by program, such as `{"kube-apiserver": ["--v=4"]}`. They override flags that are set here.
    node_lifecycle: whether a node without a renewed lease becomes NotReady after NODE_GRACE_SECONDS and loses its pods.
    folder: for keys, data and logs. It must not exist, and is removed at the end; by default a temporary folder.

    Raises environment.Missing if programs are missing (nothing is built here), and Failed.
    """

    def __init__(
        self,
        version: str | None = None,
        gates: t.Mapping[str, bool] | None = None,
        runtime_config: t.Mapping[str, bool] | None = None,
        scheduler: bool = True,
        controller_manager: bool = True,
        flags: t.Mapping[str, t.Sequence[str]] | None = None,
        folder: Path | None = None,
        *,
        node_lifecycle: bool = False,
    ) -> None:
        start = time.monotonic()
        self.minor = version or minors()[0]
        names = ["etcd", "kube-apiserver", "kubectl"]
        names += ["kube-scheduler"] if scheduler else []
        names += ["kube-controller-manager"] if controller_manager else []
        self.programs = programs(self.minor, *names, build=False)
        self.gates = dict(gates or {})
        self._flags = {name: list(more) for name, more in (flags or {}).items()}
        self._commands: dict[str, list[str]] = {}
        self._node_lifecycle = node_lifecycle
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix="lanewise-cluster-"))
        else:
            folder.mkdir(mode=0o700, parents=True)
        self.folder = folder.resolve()
        self.pids: dict[str, int] = {}
        self._supervisor = subprocess.Popen(
            [sys.executable, "-I", "-S", supervisor.__file__, str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            self._prepare(dict(runtime_config or {}), controller_manager)
            for name in ("etcd", "kube-apiserver"):
                self.start(name)
            self.wait_ready("kube-apiserver")
            for name in ("kube-scheduler", "kube-controller-manager"):
                if name in self.programs:
                    self.start(name)
            for name in ("kube-scheduler", "kube-controller-manager"):
                if name in self.programs:
                    self.wait_ready(name)
            self.version: str = self.request("GET", "/version")[1]["gitVersion"]
            if controller_manager:
                self._wait_for_account("default")
        except BaseException:
            self.close()
            raise
        self.seconds = time.monotonic() - start  #: seconds until it was ready

    def __enter__(self) -> ControlPlane:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<control plane of Kubernetes {self.minor} at {self.url}>"

    # starting

    def _prepare(self, runtime_config: dict[str, bool], accounts: bool) -> None:
        """Write keys and kubeconfigs, and prepare the command of each program. `accounts`: whether a controller manager
        creates service accounts."""
        names = ("etcd", "etcd-peers", "kube-apiserver", "kube-scheduler", "kube-controller-manager")
        self.ports = dict(zip(names, free_ports(len(names))))
        etcd, peers = self.ports["etcd"], self.ports["etcd-peers"]
        self.url = f"https://127.0.0.1:{self.ports['kube-apiserver']}"
        self.authority = Authority(self.folder)
        self._admin = self.client(*ADMIN)
        self.kubeconfig = self.write_kubeconfig(*ADMIN)
        ca, server, account_key = self.authority.certificate, self.authority.server, self.authority.account_key
        serving = [f"--tls-cert-file={server}", f"--tls-private-key-file={server}", "--bind-address=127.0.0.1"]
        config = {f"resource.k8s.io/{name}": True for name in RESOURCE_VERSIONS}
        config.update(runtime_config)
        kubelets = self.authority.issue("kube-apiserver-kubelet-client", "system:masters")
        gates = [f"--feature-gates={_pairs(self.gates)}"] if self.gates else []
        self._commands["etcd"] = [
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls=https://127.0.0.1:{etcd}",
            f"--advertise-client-urls=https://127.0.0.1:{etcd}",
            f"--listen-peer-urls=https://127.0.0.1:{peers}",
            f"--initial-advertise-peer-urls=https://127.0.0.1:{peers}",
            f"--initial-cluster=default=https://127.0.0.1:{peers}",
            *(f"--{part}{name}={server}" for part in ("", "peer-") for name in ("cert-file", "key-file")),
            *(f"--{part}trusted-ca-file={ca}" for part in ("", "peer-")),
            *(f"--{part}client-cert-auth" for part in ("", "peer-")),
            "--unsafe-no-fsync",  # the data ends with the processes
        ]
        self._commands["kube-apiserver"] = [
            *serving,
            *gates,
            f"--secure-port={self.ports['kube-apiserver']}",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",  # a loopback address is not a valid endpoint
            f"--etcd-servers=https://127.0.0.1:{etcd}",
            f"--etcd-cafile={ca}",
            f"--etcd-certfile={server}",
            f"--etcd-keyfile={server}",
            f"--client-ca-file={ca}",
            f"--kubelet-client-certificate={kubelets}",
            f"--kubelet-client-key={kubelets}",
            "--kubelet-preferred-address-types=InternalIP",  # there is no name service
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",  # kubeadm's default
            # without a controller manager, nothing creates the service account that a pod needs
            *([] if accounts else ["--disable-admission-plugins=ServiceAccount"]),
            f"--runtime-config={_pairs(config)}",
            "--service-cluster-ip-range=10.0.0.0/24",
            f"--service-account-issuer={self.url}",
            f"--service-account-key-file={account_key}",
            f"--service-account-signing-key-file={account_key}",
            "--allow-privileged=true",
        ]
        self._prepare_clients([*serving, *gates])

    def _prepare_clients(self, common: list[str]) -> None:
        """The commands of the scheduler and of the controller manager."""
        eager = ["--leader-elect=false", "--kube-api-qps=1000", "--kube-api-burst=2000"]
        for name in ("kube-scheduler", "kube-controller-manager"):
            kubeconfig = self.write_kubeconfig(f"system:{name}")
            files = [f"--{part}kubeconfig={kubeconfig}" for part in ("", "authentication-", "authorization-")]
            self._commands[name] = [*common, f"--secure-port={self.ports[name]}", *files, *eager]
        self._commands["kube-controller-manager"] += [
            # only kwok renews the leases of nodes without a kubelet
            f"--controllers=*{'' if self._node_lifecycle else ',-node-lifecycle-controller'}",
            *(
                [f"--node-monitor-grace-period={NODE_GRACE_SECONDS}s", "--node-monitor-period=1s"]
                if self._node_lifecycle
                else []
            ),
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={self.authority.account_key}",
            f"--root-ca-file={self.authority.certificate}",
        ]

    def _command_supervisor(self, **command: t.Any) -> dict[str, t.Any]:
        assert self._supervisor.stdin and self._supervisor.stdout
        self._supervisor.stdin.write(json.dumps(command) + "\n")
        self._supervisor.stdin.flush()
        answer: dict[str, t.Any] = json.loads(self._supervisor.stdout.readline())
        if "error" in answer:
            raise Failed(answer["error"])
        return answer

    def run(self, name: str, command: t.Sequence[str]) -> None:
        """Start another program that ends with the control plane. Its log is `NAME.log` in the folder."""
        self.pids[name] = self._command_supervisor(start=name, command=list(command), log=str(self.log(name)))["pid"]

    def start(self, name: str) -> None:
        """Start a program of the control plane that is not running, without waiting for it."""
        self.run(name, [str(self.programs[name]), *self._commands[name], *self._flags.get(name, [])])

    def stop(self, name: str) -> None:
        """Kill a program that this control plane runs."""
        self._command_supervisor(stop=name)
        del self.pids[name]

    def log(self, name: str) -> Path:
        """The file with a program's output."""
        return self.folder / f"{name}.log"

    def running(self, name: str) -> bool:
        return self._command_supervisor(poll=name)["status"] is None

    def check(self) -> None:
        """Raises Failed if a program that should run has ended."""
        for name in self.pids:
            if not self.running(name):
                raise Failed(f"{name} of Kubernetes {self.minor} has ended:\n{self._end_of_log(name)}")

    def wait_ready(self, name: str) -> None:
        """Wait until a program reports that it is ready. Raises Failed."""
        path = "/readyz" if name == "kube-apiserver" else "/healthz"
        client = Client(self.ports[name], self.authority.certificate, self.authority.issue(*ADMIN), timeout=10)
        deadline = time.monotonic() + READY_TIMEOUT_SECONDS
        last: t.Any = "no answer"
        while time.monotonic() < deadline:
            self.check()
            try:
                status, last = client.request("GET", path)
                if status == 200:
                    client.close()
                    return
            except OSError as error:
                last = error
            time.sleep(0.1)
        raise Failed(
            f"{name} of Kubernetes {self.minor} is not ready after {READY_TIMEOUT_SECONDS} s: {last}\n"
            f"{self._end_of_log(name)}"
        )

    def _end_of_log(self, name: str) -> str:
        lines = self.log(name).read_text(errors="replace").splitlines()
        return "\n".join(line[:500] for line in lines[-20:])

    def close(self) -> None:
        """Stop every program and remove the folder. A second call does nothing."""
        if self._supervisor.stdin is None or self._supervisor.stdin.closed:
            return
        if hasattr(self, "_admin"):
            self._admin.close()
        try:
            self._supervisor.stdin.close()
        except BrokenPipeError:
            pass  # the supervisor has already ended
        assert self._supervisor.stdout
        self._supervisor.stdout.close()
        self._supervisor.wait()
        if self.folder.exists():  # the supervisor was killed; its children died with it
            shutil.rmtree(self.folder)

    # using

    def client(self, user: str, *groups: str) -> Client:
        """A client with this user name and these groups. RBAC decides what it may do."""
        return Client(self.ports["kube-apiserver"], self.authority.certificate, self.authority.issue(user, *groups))

    def anonymous(self) -> Client:
        """A client without credentials."""
        return Client(self.ports["kube-apiserver"], self.authority.certificate)

    def write_kubeconfig(self, user: str, *groups: str, path: Path | None = None) -> Path:
        """Write a kubeconfig for a user, with embedded keys. It is JSON (valid YAML). Only its owner can read it."""
        issued = self.authority.issue(user, *groups)
        path = path or issued.with_suffix(".kubeconfig")
        pem = base64.b64encode(issued.read_bytes()).decode()  # readers pick the certificate or the key from the file
        authority = base64.b64encode(self.authority.certificate.read_bytes()).decode()
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {"server": self.url, "certificate-authority-data": authority}}],
            "users": [{"name": user, "user": {"client-certificate-data": pem, "client-key-data": pem}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
            "current-context": "test",
        }
        return write(path, json.dumps(content, indent=1).encode())

    def write_kubeconfig_with_two_contexts(self, path: Path) -> Path:
        """Write a kubeconfig of the administrator whose context `test` is this control plane. Its current context is
        another one, with the address of a port where nothing listens."""
        content = json.loads(self.kubeconfig.read_text())
        content["clusters"].append({"name": "none", "cluster": {"server": "https://127.0.0.1:1"}})
        content["contexts"].append(
            {"name": "none", "context": {**content["contexts"][0]["context"], "cluster": "none"}}
        )
        return write(path, json.dumps({**content, "current-context": "none"}).encode())

    def request(self, method: str, path: str, body: t.Any = None, content_type: str | None = None) -> tuple[int, t.Any]:
        """Client.request as the administrator."""
        return self._admin.request(method, path, body, content_type)

    def openapi(self, group_version: str) -> dict[str, t.Any]:
        """Client.openapi as the administrator."""
        return self._admin.openapi(group_version)

    def expect(self, method: str, path: str, body: t.Any = None, content_type: str | None = None) -> t.Any:
        """Send a request that must succeed. Returns the response. Raises Failed with the server's message."""
        status, answer = self.request(method, path, body, content_type)
        if status >= 300:
            raise Failed(f"{method} {path}: {status} {answer['message'] if isinstance(answer, dict) else answer}")
        return answer

    def add_node(
        self,
        name: str,
        labels: t.Mapping[str, str] | None = None,
        capacity: t.Mapping[str, str] | None = None,
    ) -> dict[str, t.Any]:
        """Create a Node object that is Ready and has no taint. `capacity` adds to cpu, memory and pods."""
        amounts = {"cpu": "128", "memory": "1Ti", "pods": "250", **(capacity or {})}
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
            "status": {
                "capacity": amounts,
                "allocatable": amounts,
                "conditions": [{"type": "Ready", "status": "True", "reason": "Declared", "message": "a test's node"}],
            },
        }
        self.expect("POST", "/api/v1/nodes", node)
        # admission taints every new node, and the controller that would remove the taint does not run
        created: dict[str, t.Any] = self.expect("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": None}})
        return created

    def add_namespace(self, name: str, labels: t.Mapping[str, str] | None = None) -> None:
        """Create a namespace, and wait until pods can be created in it."""
        metadata = {"name": name, "labels": dict(labels or {})}
        self.expect("POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        if "kube-controller-manager" in self.programs:
            self._wait_for_account(name)

    def _wait_for_account(self, namespace: str) -> None:
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
        self.wait_for(lambda: self.request("GET", path)[0] == 200, f"the service account of namespace {namespace}")

    def wait_for(self, condition: t.Callable[[], t.Any], what: str, seconds: float = 60) -> t.Any:
        """Wait until a function returns a true value, and return that value. Raises Failed."""
        deadline = time.monotonic() + seconds
        while True:
            value = condition()
            if value:
                return value
            if time.monotonic() > deadline:
                raise Failed(f"waited {seconds:.0f} s for {what}, which did not happen")
            time.sleep(0.05)


def _pairs(values: t.Mapping[str, bool]) -> str:
    return ",".join(f"{name}={str(value).lower()}" for name, value in values.items())
