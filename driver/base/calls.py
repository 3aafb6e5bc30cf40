# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Values that pass between the rooms: what `kubelet` and `hook` ask, and `claims` answers. Nothing here knows gRPC,
sockets or the kernel.
"""

from __future__ import annotations

import re
import typing as t
from dataclasses import dataclass, field
from pathlib import Path

HEALTHY = "healthy"
UNHEALTHY = "unhealthy"

_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


@dataclass(frozen=True)
class ClaimRef:
    """A ResourceClaim as kubelet names it. The UID is the key: the name may belong to another claim by now."""

    namespace: str
    name: str
    uid: str

    def problem(self) -> str:
        """Why this can be no claim of an API server, or an empty text. Parts of it become names of files."""
        if not _UID.fullmatch(self.uid):
            return f"{self.uid!r} is no UID of a claim"
        if not _NAMESPACE.fullmatch(self.namespace):
            return f"{self.namespace!r} is no name of a namespace"
        if not _NAME.fullmatch(self.name):
            return f"{self.name!r} is no name of a claim"
        return ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass
class Pod:
    """The pod that a claim is for."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True)
class PreparedDevice:
    """One allocated device that is ready for its pod's containers.

    C(requests) as in the allocation's results (C(nic) or C(nic/fast)): kubelet is told the main requests only.
    C(cdi_ids) are the ids that cdi.write returned, to be given to each container that has one of the requests.
    """

    pool: str
    device: str
    requests: tuple[str, ...]
    cdi_ids: tuple[str, ...] = ()
    share_id: str | None = None


@dataclass(frozen=True)
class DeviceHealth:
    """The health of one published or allocated device. C(updated) is Unix time in seconds."""

    pool: str
    device: str
    health: str
    updated: float
    message: str = ""


@dataclass(frozen=True)
class AttachRequest:
    """What a createRuntime hook passes on: a container with devices of claim C(uid) is about to start.

    C(netns) leads to the container's network namespace: a file descriptor that the hook opened for the container's
    process and sent along, valid until attach returns. No process id is involved that could mean another process by
    now, or be one of another PID namespace. C(pid) is for messages. C(annotations) are the container's.
    """

    uid: str
    netns: Path
    pid: int
    container: str
    annotations: t.Mapping[str, str] = field(default_factory=dict)

    def _annotation(self, *names: str) -> str:
        return next((self.annotations[name] for name in names if self.annotations.get(name)), "")

    @property
    def pod_uid(self) -> str:
        """The pod's UID as containerd or CRI-O noted it, empty where neither did."""
        return self._annotation("io.kubernetes.cri.sandbox-uid", "io.kubernetes.pod.uid")

    @property
    def pod_namespace(self) -> str:
        """The pod's namespace, empty where the runtime did not note it."""
        return self._annotation("io.kubernetes.cri.sandbox-namespace", "io.kubernetes.pod.namespace")

    @property
    def pod_name(self) -> str:
        """The pod's name, empty where the runtime did not note it."""
        return self._annotation("io.kubernetes.cri.sandbox-name", "io.kubernetes.pod.name")


class Service(t.Protocol):
    """The driver's own work. All methods may be called from several threads at once, and again after any outcome.

    They raise DriverError with a message for the pod's owner; Busy tells a hook to try again by itself. Any other
    exception is a mistake in the driver: it is logged, and the caller is told that the driver failed.
    """

    def prepare(self, claim: ClaimRef) -> t.Sequence[PreparedDevice]:
        """Make a claim's devices ready, or find them ready. Returns every device that the driver serves in it."""

    def unprepare(self, claim: ClaimRef) -> None:
        """Take back everything of a claim. A claim that is unknown is no mistake."""

    def attach(self, request: AttachRequest) -> None:
        """Bring a claim's devices into its pod, or find them there. Returns only when they are ready for use."""

    def health(self) -> t.Sequence[DeviceHealth]:
        """All devices of the driver on this node, allocated ones too. Called every few seconds: must not block."""
