# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A stand-in for the CPU DRA driver, which cannot be built here: a kubelet plugin that publishes slices of dra.cpu.

It publishes and prepares devices as the driver's sources do (kubernetes-sigs/dra-driver-cpu after 0.2.0, CPUs grouped
by NUMA node: pkg/device/builder.go, pkg/driver/cdi.go, docs/user/device-attributes.md). It reads the CPUs from an
example machine's sysfs tree. It does not pin containers to CPUs: the real driver's NRI plugin does that, according to
an environment variable of the container.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import threading
import typing as t
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.tests.cluster.machine_tree import MachineTree
from ansible_collections.lanewise.dra.tests.cluster.node import Node

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # read when gRPC is imported; needed because this process forks

import grpc
from lanewise_driver.kubelet import protocol

NAME = "dra.cpu"
API = "/apis/resource.k8s.io/v1"
KUBELET = Path("/var/lib/kubelet")
SPECIFICATION = Path("/var/run/cdi/dra.cpu.json")
KIND = "dra.k8s.io/cpu"


def devices(tree: MachineTree) -> list[Object]:
    """One device for each NUMA node that has CPUs."""
    nodes: dict[int, list[int]] = collections.defaultdict(list)
    for cpu in tree.cpus:
        nodes[tree.cpu_node(cpu)].append(cpu)
    found = []
    for number, cpus in sorted(nodes.items()):
        attributes = {
            "resource.kubernetes.io/numaNode": {"int": number},
            "dra.cpu/socketID": {"int": tree.cpu_socket(cpus[0])},
            "dra.cpu/smtEnabled": {"bool": tree.smt},
            "dra.cpu/numCPUs": {"int": len(cpus)},
            "dra.cpu/numaNodeID": {"int": number},
            "dra.net/numaNode": {"int": number},
        }
        device = {"name": f"cpudevnuma{number:03}", "attributes": attributes, "allowMultipleAllocations": True}
        found.append({**device, "capacity": {"dra.cpu/cpu": {"value": str(len(cpus))}}})
    return found


class CpuDriver:
    """The plugin on a node that has the CPUs of `tree`. `close` stops it."""

    def __init__(self, node: Node, tree: MachineTree) -> None:
        self.plane, self.node, self.tree = node.plane, node, tree
        self.assigned: dict[str, list[int]] = {}  # CPUs by the UID of a claim
        self._lock = threading.Lock()
        self._servers = [
            self._serve(KUBELET / "plugins" / NAME / "dra.sock", protocol.DRA["v1"], self._claims()),
            self._serve(KUBELET / "plugins_registry" / f"{NAME}-reg.sock", protocol.REGISTRATION, self._registration()),
        ]
        self.devices = devices(tree)
        pool = {"name": node.name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": NAME, "nodeName": node.name, "pool": pool, "devices": self.devices}
        name = f"{node.name}-dra.cpu"
        self.plane.expect("POST", f"{API}/resourceslices", {"metadata": {"name": name}, "spec": spec})

    def close(self) -> None:
        for server in self._servers:
            server.stop(0).wait()

    def _serve(self, path: Path, service: str, handlers: t.Mapping[str, t.Any]) -> grpc.Server:
        path.parent.mkdir(parents=True, exist_ok=True)
        methods = protocol.methods(service)
        rpc_handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                handler,
                request_deserializer=methods[name].request.FromString,
                response_serializer=methods[name].response.SerializeToString,
            )
            for name, handler in handlers.items()
        }
        server = grpc.server(ThreadPoolExecutor(4))
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, rpc_handlers),))
        server.add_insecure_port(f"unix:{path}")
        server.start()
        return server

    def _registration(self) -> Object:
        def info(_request: t.Any, _context: t.Any) -> t.Any:
            answer = protocol.message("pluginregistration.PluginInfo")
            endpoint = str(KUBELET / "plugins" / NAME / "dra.sock")
            return answer(type="DRAPlugin", name=NAME, endpoint=endpoint, supported_versions=["v1.DRAPlugin"])

        def notified(_request: t.Any, _context: t.Any) -> t.Any:
            return protocol.message("pluginregistration.RegistrationStatusResponse")()

        return {"GetInfo": info, "NotifyRegistrationStatus": notified}

    def _claims(self) -> Object:
        methods = protocol.methods(protocol.DRA["v1"])

        def prepare(request: t.Any, _context: t.Any) -> t.Any:
            response = methods["NodePrepareResources"].response()
            for claim in request.claims:
                entry = response.claims[claim.uid]
                try:
                    for result in self._prepare(claim.namespace, claim.name, claim.uid):
                        entry.devices.add(**result)
                except Exception as error:  # noqa: BLE001  # kubelet reports it in the pod's events
                    entry.error = repr(error)
            return response

        def unprepare(request: t.Any, _context: t.Any) -> t.Any:
            response = methods["NodeUnprepareResources"].response()
            for claim in request.claims:
                with self._lock:
                    self.assigned.pop(claim.uid, None)
                    self._write()
                response.claims[claim.uid].SetInParent()
            return response

        return {"NodePrepareResources": prepare, "NodeUnprepareResources": unprepare}

    def _prepare(self, namespace: str, name: str, uid: str) -> list[Object]:
        claim = self.plane.expect("GET", f"{API}/namespaces/{namespace}/resourceclaims/{name}")
        if claim["metadata"]["uid"] != uid:
            raise ValueError(f"claim {namespace}/{name} was replaced: it does not have UID {uid}")
        results = claim["status"]["allocation"]["devices"]["results"]
        cpu_results = [result for result in results if result["driver"] == NAME]
        with self._lock:
            if uid not in self.assigned:
                self.assigned[uid] = [cpu for cpu_result in cpu_results for cpu in self._choose(cpu_result)]
                self._write()
        return [
            {
                "request_names": [cpu_result["request"].partition("/")[0]],
                "pool_name": cpu_result["pool"],
                "device_name": cpu_result["device"],
                "cdi_device_ids": [f"{KIND}=claim-{uid}"],
                "share_id": cpu_result.get("shareID", ""),
            }
            for cpu_result in cpu_results
        ]

    def _choose(self, result: Object) -> list[int]:
        """Choose free CPUs of the allocated NUMA node."""
        number = int(result["device"].removeprefix("cpudevnuma"))
        used = {cpu for cpus in self.assigned.values() for cpu in cpus}
        free = [cpu for cpu in self.tree.cpus if cpu not in used and self.tree.cpu_node(cpu) == number]
        count = int(result["consumedCapacity"]["dra.cpu/cpu"])
        if len(free) < count:
            raise ValueError(f"{result['device']} has {len(free)} free CPUs, and the claim needs {count}")
        return free[:count]

    def _write(self) -> None:
        """Write the CDI specification, which sets an environment variable for each claim."""
        entries = [
            {
                "name": f"claim-{uid}",
                "containerEdits": {"env": [f"DRA_CPUSET_{uid}={','.join(map(str, cpus))}"]},
            }
            for uid, cpus in self.assigned.items()
        ]
        SPECIFICATION.parent.mkdir(parents=True, exist_ok=True)
        if not entries:
            with contextlib.suppress(FileNotFoundError):
                SPECIFICATION.unlink()
            return
        new = SPECIFICATION.with_suffix(".new")
        new.write_text(json.dumps({"cdiVersion": "0.8.0", "kind": KIND, "devices": entries}))
        os.replace(new, SPECIFICATION)
