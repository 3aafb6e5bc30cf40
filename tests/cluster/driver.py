# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The driver on a node, as an administrator installs it: service account, roles, policies, a token bound to the node,
and a process that uses the node's paths. Its devices are ends of veth pairs, whose other ends are in a namespace that
acts as the switch."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import typing as t
import urllib.error
import urllib.request
from pathlib import Path

import yaml
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.tests.cluster.node import Node, ip
from ansible_collections.lanewise.dra.tests.common.places import COLLECTION
from ansible_collections.lanewise.dra.tests.driver import ipv6

NAME = "lanewise.dev"
NAMESPACE = "lanewise-system"
ACCOUNT = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/lanewise-driver"
MANIFESTS = COLLECTION / "driver" / "manifests"
API = "/apis/resource.k8s.io/v1"
FOLDER = Path("/etc/lanewise")
STATE = Path("/var/lib/kubelet/plugins") / NAME
READY = "http://127.0.0.1:9178/readyz"
_PLURALS = {"ValidatingAdmissionPolicy": "validatingadmissionpolicies"}


class Driver:
    """The driver of `node`. `settings` are added to its settings file, `arguments` to its command. `program` is the
    module or script that Python runs."""

    def __init__(
        self,
        node: Node,
        settings: Object | None = None,
        arguments: t.Sequence[str] = (),
        program: t.Sequence[str] = ("-m", "lanewise_driver.cli"),
    ) -> None:
        self.node = node
        self.plane = node.plane
        self.program = list(program)
        self.arguments = list(arguments)
        self._apply_manifests()
        FOLDER.mkdir(exist_ok=True)
        self.settings: Object = {
            "node_name": node.name,
            "kubeconfig": str(FOLDER / "kubeconfig"),
            "token_file": str(FOLDER / "token"),
            "virtual_interfaces": ["rail*"],
            **(settings or {}),
        }
        self.write_settings()
        (FOLDER / "kubeconfig").write_text(self._kubeconfig(str(self.plane.authority.certificate)))
        (FOLDER / "token").write_text(self._token())
        self.start()

    def _kubeconfig(self, authority: str) -> str:
        """The driver's kubeconfig, with the path of the CA certificate on the node. The token is in another file."""
        cluster = {"server": self.plane.url, "certificate-authority": authority}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "site", "cluster": cluster}],
            "contexts": [{"name": "site", "context": {"cluster": "site", "user": "driver"}}],
            "current-context": "site",
            "users": [],
        }
        return json.dumps(config)

    def _apply_manifests(self) -> None:
        """Apply the driver's manifests, without the DaemonSet."""
        for path in sorted(MANIFESTS.glob("*.yaml")):
            for item in yaml.safe_load_all(path.read_text()):
                if item["kind"] == "DaemonSet":
                    continue
                group = item["apiVersion"]
                plural = _PLURALS.get(item["kind"], f"{item['kind'].lower()}s")
                namespace = item["metadata"].get("namespace")
                resource = f"namespaces/{namespace}/{plural}" if namespace else plural
                top = f"/apis/{group}" if "/" in group else f"/api/{group}"
                name = item["metadata"]["name"]
                query = "fieldManager=test&force=true"
                content_type = "application/apply-patch+yaml"
                self.plane.expect("PATCH", f"{top}/{resource}/{name}?{query}", item, content_type)

    def _token(self) -> str:
        uid = self.plane.expect("GET", f"/api/v1/nodes/{self.node.name}")["metadata"]["uid"]
        bound = {"apiVersion": "v1", "kind": "Node", "name": self.node.name, "uid": uid}
        spec = {"expirationSeconds": 3600, "boundObjectRef": bound}
        return str(self.plane.expect("POST", f"{ACCOUNT}/token", {"spec": spec})["status"]["token"])

    def write_settings(self, **changes: t.Any) -> None:
        self.settings.update(changes)
        (FOLDER / "driver.yml").write_text(json.dumps(self.settings))

    def start(self, *prefix: str) -> None:
        """Start the driver. `prefix` is put before its command, such as a wrapper."""
        program = [sys.executable, *self.program, *self.arguments, "run"]
        self.plane.run("driver", [*prefix, *program, "--hook-python", sys.executable])

    def stop(self) -> None:
        """Kill the driver with SIGKILL."""
        self.plane.stop("driver")

    def reasons(self) -> list[str]:
        """The reasons that the driver's readiness endpoint reports; empty if it is ready."""
        try:
            try:
                with urllib.request.urlopen(READY, timeout=5):
                    return []
            except urllib.error.HTTPError as error:
                return error.read().decode().splitlines() or [repr(error)]
        except (OSError, http.client.HTTPException) as error:  # tests kill the driver, also while it responds
            return [repr(error)]

    def wait_ready(self, seconds: float = 30) -> None:
        def ready() -> bool:
            self.plane.check()
            return not self.reasons()

        self.plane.wait_for(ready, "the driver to be ready", seconds)

    def slices(self) -> list[Object]:
        found = self.plane.expect("GET", f"{API}/resourceslices")["items"]
        return [item for item in found if item["spec"]["driver"] == NAME]

    def devices(self) -> dict[str, Object]:
        """The published devices by name."""
        return {device["name"]: device for item in self.slices() for device in item["spec"].get("devices", ())}

    def log(self) -> str:
        return self.plane.log("driver").read_text()

    def claim_files(self) -> list[str]:
        """The files that a prepared claim has on the node: records, CDI specs, metadata, pinned namespaces."""
        patterns = {
            STATE / "state": "*",
            STATE / "metadata": "*",
            Path("/run/lanewise/netns"): "*",
            Path("/run/lanewise/attached"): "*",
            Path("/run/lanewise/early"): "*",
            Path("/var/run/cdi"): "k8s.lanewise.dev*",
        }
        return sorted(str(path) for folder, pattern in patterns.items() for path in folder.glob(pattern))


def add_rail(number: int) -> str:
    """Create a veth pair: the device railN, and its peer wireN in the network namespace `switch`. Returns railN."""
    names = [line.split()[0] for line in ip("netns list").splitlines()]
    if "switch" not in names:
        ip("netns add switch")
    mac = f"02:00:00:00:01:{number:02x}"
    ip(f"link add rail{number} address {mac} type veth peer name wire{number} netns switch")
    ip(f"-n switch address add 203.0.113.{number * 16 + 1}/28 dev wire{number}")
    ip(f"-n switch link set wire{number} up")
    ip(f"link set rail{number} up")
    return f"rail{number}"


def responds(address: str) -> bool:
    """Whether an address responds on the wire: the pod's kernel refuses a connection, because nothing listens there."""
    program = (
        f"import errno, socket; socket.socket().connect_ex(('{address}', 9)) == errno.ECONNREFUSED or exit('no answer')"
    )
    command = ["ip", "netns", "exec", "switch", "timeout", "5", sys.executable, "-c", program]
    return subprocess.run(command, check=False).returncode == 0


def host_state(name: str) -> str:
    """Everything that `ip` reports about an interface of the node, without counters, lifetimes and indexes.

    Waits until the kernel has set up its IPv6 addresses, each of which adds a route.
    """
    ipv6.wait(ip, name, pause=0.1)
    shown = []
    for command in ("-details link", "address"):
        for entry in json.loads(ip(f"-json {command} show dev {name}")):
            for volatile in ("ifindex", "stats64", "link_index", "valid_life_time", "preferred_life_time"):
                entry.pop(volatile, None)
            for address in entry.get("addr_info", ()):
                for volatile in ("valid_life_time", "preferred_life_time", "tentative"):
                    address.pop(volatile, None)
            shown.append(entry)
    for family in ("-4", "-6"):
        shown += json.loads(ip(f"-json {family} route show table all dev {name}"))
        shown += json.loads(ip(f"-json {family} rule"))
        shown += json.loads(ip(f"-json {family} neighbour show nud permanent dev {name}"))
    sysctls = Path("/proc/sys/net")
    for family in ("ipv4", "ipv6"):
        for folder in ("conf", "neigh"):
            for path in sorted((sysctls / family / folder / name).glob("*")):
                try:
                    shown.append([str(path), path.read_text()])
                except OSError:
                    continue
    return json.dumps(shown, indent=1, sort_keys=True)
