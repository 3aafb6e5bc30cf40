# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The CDI spec of a claim: the changes that a container runtime makes to containers that use it.

One file per claim. Each allocated device is a CDI device, with its device nodes and the mount of its request's
metadata. The createRuntime hook, which requests the driver to attach the claim's interfaces, is outside of the devices:
runtimes add that part once per container, however many of the devices the container has.
Only fields of CDI 0.5.0 are used, so containerd since 1.7.0 and every CRI-O with CDI support can read it: the library
refuses specs of a newer version than its own.
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

#: Seconds that a hook waits for the driver and its work.
HOOK_WAIT = 30
#: Additional seconds until the runtime kills the hook, so that the hook can report why it gave up.
HOOK_GRACE = 5

#: The node's POSIX shell, which runs hook.sh.
SHELL = "/bin/sh"

#: The environment of hooks, instead of the runtime's.
_ENVIRONMENT = ["LC_ALL=C.UTF-8"]


@dataclass(frozen=True)
class DeviceNode:
    """A character device that the containers of a request get, such as /dev/infiniband/uverbs0.

    `path` is the same on node and in container. The runtime uses the numbers unchecked, so they must be current.
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

    `share_id` distinguishes shares of one device. The CDI library refuses a device without changes: one without `nodes`
    needs `mounts` (`metadata.write` returns one for each request).
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
    """The changes to every container of a claim, whichever of its requests it has. A variable is `NAME=value`."""

    variables: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()


_NOTHING = CommonEdits()


def write(
    paths: Paths, uid: str, devices: t.Sequence[Device], hook: bool = True, common: CommonEdits = _NOTHING
) -> list[str]:
    """Write the spec of claim `uid` atomically, and only if it differs. Returns the CDI IDs in the devices' order.

    `hook` is False if no device is to be attached (admin access only). Without devices there is no file, because the
    library refuses an empty spec. Raises ValueError for a device without changes and for a duplicate ID, and OSError.
    """
    path = paths.cdi_spec(uid)
    if not devices:
        files.remove(path)
        return []
    spec = specification(paths, uid, devices, hook, common)
    # /run is empty after a power cut, and the driver writes every claim's spec again when it starts;
    # without indentation json encodes in C
    files.replace(path, (json.dumps(spec) + "\n").encode(), 0o644, files.PowerCut.MAY_EMPTY)
    return [identifier(uid, device) for device in devices]


def specification(
    paths: Paths, uid: str, devices: t.Sequence[Device], hook: bool = True, common: CommonEdits = _NOTHING
) -> Object:
    """The content of the spec."""
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
    """Remove the spec of claim `uid`, if there is one. Raises OSError."""
    files.remove(paths.cdi_spec(uid))


def written(paths: Paths) -> set[str]:
    """The UIDs of all claims with a spec. Removes unfinished files of killed writers. Raises OSError."""
    before, after = paths.cdi_spec("*").name.split("*")
    files.sweep(paths.cdi_dir, before)
    return {entry.name[len(before) : -len(after)] for entry in paths.cdi_dir.glob(f"{before}*{after}")}


def hook_command(paths: Paths, uid: str) -> list[str]:
    """The command line of the hook."""
    return [
        SHELL,
        str(paths.hook_script),
        str(paths.hook_python),
        str(paths.hook_program),
        str(paths.hook_socket),
        uid,
        str(HOOK_WAIT),
    ]


def _hook(paths: Paths, uid: str) -> Object:
    command = hook_command(paths, uid)
    return {
        "hookName": "createRuntime",
        "path": command[0],
        "args": command,
        "env": _ENVIRONMENT,
        "timeout": HOOK_WAIT + HOOK_GRACE,
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
