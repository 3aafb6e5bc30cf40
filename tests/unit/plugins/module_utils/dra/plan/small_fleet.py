# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Objects of a small cluster as a server lists them: nodes, each with two GPUs per switch, and pods that use GPUs."""

from __future__ import annotations

import typing as t

from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object

DRIVER = "gpu.example.com"


def claim_spec(count: int, paired: bool = False) -> Object:
    """The spec of a claim for GPUs; if `paired`, all of them on one switch."""
    devices: Object = {"requests": [{"name": "gpu", "exactly": {"deviceClassName": DRIVER, "count": count}}]}
    if paired:
        devices["constraints"] = [{"requests": ["gpu"], "matchAttribute": f"{DRIVER}/switch"}]
    return {"devices": devices}


CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": DRIVER},
    "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
}


def node(name: str, gpus: int, cpu: str = "64") -> list[Object]:
    """A node and its slice. GPUs 0 and 1 are on switch 0, GPUs 2 and 3 on switch 1, and so on."""
    devices = [{"name": f"gpu-{i}", "attributes": {"switch": {"int": i // 2}}} for i in range(gpus)]
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    return [
        {
            "kind": "Node",
            "metadata": {"name": name, "labels": {"name": name}},
            "spec": {},
            "status": {"allocatable": {"cpu": cpu, "memory": "1Ti", "pods": "110"}},
        },
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": f"slice-{name}"},
            "spec": {"driver": DRIVER, "pool": pool, "nodeName": name, "devices": devices},
        },
    ]


def pod(name: str, node_name: str, gpus: t.Sequence[int], kind: str = "ReplicaSet", **more: t.Any) -> list[Object]:
    """A running pod, and its own claim with these GPUs. `kind` is the kind of its controller; `more` are labels,
    annotations, the deletionTimestamp or fields of its spec."""
    owner = [{"kind": kind, "name": "set", "uid": "set-uid", "controller": True}] if kind else []
    metadata = {"name": name, "namespace": "team", "uid": f"uid-{name}", "ownerReferences": owner}
    metadata.update({key: more.pop(key) for key in ("labels", "annotations", "deletionTimestamp") if key in more})
    claim = f"{name}-d"
    results = [{"request": "gpu", "driver": DRIVER, "pool": node_name, "device": f"gpu-{number}"} for number in gpus]
    return [
        {
            "kind": "Pod",
            "metadata": metadata,
            "spec": {
                "nodeName": node_name,
                "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}],
                "resourceClaims": [{"name": "d", "resourceClaimTemplateName": "t"}],
                **more,
            },
            "status": {"phase": "Running", "resourceClaimStatuses": [{"name": "d", "resourceClaimName": claim}]},
        },
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": claim, "namespace": "team"},
            "spec": claim_spec(len(gpus)),
            "status": {
                "allocation": {"devices": {"results": results}},
                "reservedFor": [{"resource": "pods", "name": name, "uid": f"uid-{name}"}],
            },
        },
    ]
