# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Device metadata for containers (KEP-5304): a file for each request of a claim, mounted read-only.

A file is a stream of JSON objects: the same DeviceMetadata once for each API version, the newest version first.

A container's mounts are set up before its createRuntime hook runs, but interface names and addresses are known only
after the hook. So the files are created at prepare, and network data is written into the same files at attach.

Source: k8s.io/dynamic-resource-allocation api/metadata (types.go, doc.go) and kubeletplugin/metadata.go.
"""

from __future__ import annotations

import json
import shutil
import typing as t
from dataclasses import dataclass
from pathlib import Path

from ..base import files
from ..base.calls import ClaimRef
from ..base.objects import Object, ObjectView
from ..base.paths import Paths
from ..dra.config.interface_config import DRIVER
from ..dra.kube.bounded_json import loads
from .cdi import Mount

VERSIONS = ("metadata.resource.k8s.io/v1beta1", "metadata.resource.k8s.io/v1alpha1")
CONTAINER_DIR = "/var/run/kubernetes.io/dra-device-attributes"

#: The annotation of a claim from a template: its name in the pod.
POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"


@dataclass(frozen=True)
class DeviceMetadata:
    """One allocated device. `request` is as in the allocation's result (`nic` or `nic/fast`), `attributes` are as in a
    ResourceSlice, `network` is a NetworkDeviceData (interfaceName, hardwareAddress, ips) once it is known."""

    request: str
    pool: str
    device: str
    attributes: ObjectView
    network: ObjectView | None = None


def write(
    paths: Paths, claim: ClaimRef, devices: t.Sequence[DeviceMetadata], pod_claim_name: str | None = None
) -> dict[str, Mount]:
    """Write a claim's files at prepare, and again when network data is added or removed. Existing files keep their
    inode and get the new content with the next generation; unchanged files are not written.

    `pod_claim_name` is the value of the claim's annotation POD_CLAIM_NAME, or None. Returns the mount of each main
    request. Raises OSError.
    """
    requests: dict[str, list[DeviceMetadata]] = {}
    for device in devices:
        requests.setdefault(device.request.partition("/")[0], []).append(device)
    mounts = {}
    for request, members in requests.items():
        path = paths.metadata_dir / claim.uid / request / "metadata.json"
        if path.exists():
            old = _read(path.read_bytes())
            generation = int(old["metadata"]["generation"]) if old else 0
            new = _object(claim, pod_claim_name, members, generation)
            if old != new:
                new["metadata"]["generation"] = generation + 1
                files.overwrite(path, _stream(new))
        else:
            # after a power cut the driver writes the file again when it starts, before any container starts
            files.replace(path, _stream(_object(claim, pod_claim_name, members, 1)), 0o644, files.PowerCut.MAY_EMPTY)
        mounts[request] = Mount(path, container_path(claim.name, request, pod_claim_name))
    return mounts


def write_file(path: Path, content: bytes) -> None:
    """Write another file of a claim. An existing file keeps its inode, as in `write`. Raises OSError."""
    if path.exists():
        files.overwrite(path, content)
    else:
        files.replace(path, content, 0o644, files.PowerCut.MAY_EMPTY)


def remove(paths: Paths, uid: str) -> None:
    """Remove a claim's files if they exist. Raises OSError."""
    try:
        shutil.rmtree(paths.metadata_dir / uid)
    except FileNotFoundError:
        pass


def written(paths: Paths) -> set[str]:
    """The UIDs of all claims with metadata. Raises OSError."""
    folders = paths.metadata_dir.iterdir() if paths.metadata_dir.exists() else ()
    return {entry.name for entry in folders if entry.is_dir()}


def container_path(claim: str, request: str, pod_claim_name: str | None = None) -> str:
    """The path of a request's file in the container."""
    folder = f"resourceclaimtemplates/{pod_claim_name}" if pod_claim_name else f"resourceclaims/{claim}"
    return f"{CONTAINER_DIR}/{folder}/{request}/{DRIVER}-metadata.json"


def _object(
    claim: ClaimRef, pod_claim_name: str | None, devices: t.Sequence[DeviceMetadata], generation: int
) -> Object:
    listed = []
    for device in devices:
        entry: Object = {"driver": DRIVER, "pool": device.pool, "name": device.device}
        if device.attributes:
            entry["attributes"] = dict(device.attributes)
        if device.network:
            entry["networkData"] = dict(device.network)
        listed.append(entry)
    body: Object = {
        "metadata": {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid, "generation": generation}
    }
    if pod_claim_name:
        body["podClaimName"] = pod_claim_name
    body["requests"] = [{"name": devices[0].request, "devices": listed}]
    return body


def _stream(body: Object) -> bytes:
    objects = ({"kind": "DeviceMetadata", "apiVersion": version, **body} for version in VERSIONS)
    return "".join(json.dumps(item, separators=(",", ":")) + "\n" for item in objects).encode()


def _read(content: bytes) -> Object | None:
    """The first object of a file, without its kind and API version; None if a killed writer left an invalid file."""
    try:
        body: Object = loads(content.split(b"\n", 1)[0])
        del body["kind"], body["apiVersion"]
        int(body["metadata"]["generation"])
    except (ValueError, KeyError, TypeError):
        return None
    return body
