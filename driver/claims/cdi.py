# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The CDI spec of a claim: the changes that a container runtime makes to containers that use it.

There is one file per claim. Each allocated device is a CDI device, with its device nodes and the mount of its request's
metadata. The createRuntime hook, which asks the driver to attach the claim's devices, is not part of these devices but
of the spec: runtimes add that part once per container, however many of the devices the container has.

Only fields of CDI 0.5.0 are used, so containerd from 1.7.0 on and every CRI-O with CDI support can read the spec. The
CDI library rejects specs of a newer version than its own.

Source: tags.cncf.io/container-device-interface (SPEC.md, pkg/cdi, specs-go/version.go).
"""

from __future__ import annotations

import json
import typing as t
from dataclasses import dataclass
from pathlib import Path

from ..base import files
from ..base.objects import Object
from ..base.paths import Paths
from ..dra.config.interface_config import DRIVER

VERSION = "0.5.0"
KIND = f"k8s.{DRIVER}/claim"

#: Seconds for which a hook waits until the devices are attached.
HOOK_WAIT_SECONDS = 30
#: Additional seconds until the runtime kills the hook, so that the hook can report why it gave up.
HOOK_GRACE_SECONDS = 5

#: The node's POSIX shell, which runs hook.sh.
SHELL = "/bin/sh"

#: The environment of hooks, which do not inherit that of the runtime.
_ENVIRONMENT = ["LC_ALL=C.UTF-8"]


@dataclass(frozen=True)
class DeviceNode:
    """A character device that the containers of a request get, such as /dev/infiniband/uverbs0.

    `path` is the same on the node and in the container. Runtimes do not check the numbers, so these must be current.
    """

    path: str
    major: int
    minor: int
    permissions: str = "rw"


@dataclass(frozen=True)
class Mount:
    """A file of the node that the containers of a request see, read-only."""

    host: Path
    container: str


@dataclass(frozen=True)
class Device:
    """An allocated device: `request` as in the allocation's result, `device` as published.

    `share_id` distinguishes shares of one device. The CDI library rejects a device without edits: a device without
    `nodes` needs `mounts` (`metadata.write` returns one for each request).
    """

    request: str
    device: str
    nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    share_id: str = ""


def identifier(uid: str, device: Device) -> str:
    """The CDI ID of a device. It contains the claim's UID, because runtimes cache specs by name."""
    return f"{KIND}={_name(uid, device)}"


@dataclass(frozen=True)
class CommonEdits:
    """The edits of every container that uses the claim, whichever requests the container references. `variables` are
    environment variables, each `NAME=value`."""

    variables: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()


_NOTHING = CommonEdits()


def write(
    paths: Paths, uid: str, devices: t.Sequence[Device], hook: bool = True, common: CommonEdits = _NOTHING
) -> list[str]:
    """Write the spec of claim `uid` atomically, and only if it differs. Returns the CDI IDs in the order of `devices`.

    `hook` is False if no device is to be attached (admin access only). Without devices the file is removed, because the
    CDI library rejects an empty spec. Raises ValueError for a device without edits and for a duplicate ID, and OSError.
    """
    path = paths.cdi_spec(uid)
    if not devices:
        files.remove(path)
        return []
    spec = specification(paths, uid, devices, hook, common)
    # /run is empty after a power cut, and the driver writes the specs of all claims again when it starts;
    # json encodes in C only without indentation
    files.replace(path, (json.dumps(spec) + "\n").encode(), 0o644, files.PowerCut.MAY_EMPTY)
    return [identifier(uid, device) for device in devices]


def specification(
    paths: Paths, uid: str, devices: t.Sequence[Device], hook: bool = True, common: CommonEdits = _NOTHING
) -> Object:
    """The content of the spec. Raises ValueError as `write`."""
    names = [_name(uid, device) for device in devices]
    if len(set(names)) != len(names):
        raise ValueError(f"claim {uid}: a request has the same device twice")
    spec: Object = {"cdiVersion": VERSION, "kind": KIND, "devices": []}
    for name, device in zip(names, devices, strict=True):
        edits: Object = {}
        if device.nodes:
            edits["deviceNodes"] = [_node(node) for node in device.nodes]
        if device.mounts:
            edits["mounts"] = [_mount(mount) for mount in device.mounts]
        if not edits:
            raise ValueError(f"claim {uid}: device {device.device} changes nothing in a container")
        spec["devices"].append({"name": name, "containerEdits": edits})
    edits = {
        "env": list(common.variables),
        "mounts": [_mount(mount) for mount in common.mounts],
        "hooks": [_hook(paths, uid)] if hook else [],
    }
    if any(edits.values()):
        spec["containerEdits"] = {name: values for name, values in edits.items() if values}
    return spec


def remove(paths: Paths, uid: str) -> None:
    """Remove the spec of claim `uid` if it exists. Raises OSError."""
    files.remove(paths.cdi_spec(uid))


def written(paths: Paths) -> set[str]:
    """The UIDs of all claims with a spec. Removes unfinished files of killed writers. Raises OSError."""
    prefix, suffix = paths.cdi_spec("*").name.split("*")
    files.sweep(paths.cdi_dir, prefix)
    return {entry.name[len(prefix) : -len(suffix)] for entry in paths.cdi_dir.glob(f"{prefix}*{suffix}")}


def hook_command(paths: Paths, uid: str) -> list[str]:
    """The command line of the hook of claim `uid`."""
    return [
        SHELL,
        str(paths.hook_script),
        str(paths.hook_python),
        str(paths.hook_program),
        str(paths.hook_socket),
        uid,
        str(HOOK_WAIT_SECONDS),
    ]


def _hook(paths: Paths, uid: str) -> Object:
    command = hook_command(paths, uid)
    return {
        "hookName": "createRuntime",
        "path": command[0],
        "args": command,
        "env": _ENVIRONMENT,
        "timeout": HOOK_WAIT_SECONDS + HOOK_GRACE_SECONDS,
    }


def _node(node: DeviceNode) -> Object:
    return {
        "path": node.path,
        "type": "c",
        "major": node.major,
        "minor": node.minor,
        "permissions": node.permissions,
    }


def _mount(mount: Mount) -> Object:
    return {"hostPath": str(mount.host), "containerPath": mount.container, "options": ["ro", "bind", "nosuid", "nodev"]}


def _name(uid: str, device: Device) -> str:
    # requests and devices are DNS labels, which have no underscores
    parts = [uid, device.request.partition("/")[0], device.device]
    return "_".join([*parts, device.share_id] if device.share_id else parts)
