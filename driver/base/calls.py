# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Values that packages of the driver pass to each other: the requests of `kubelet` and `hook`, and the results of
`claims`. They do not depend on gRPC, sockets or the kernel.
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
    """A reference to a ResourceClaim, as kubelet passes it. The UID is the key: a newer claim may have the same
    name."""

    namespace: str
    name: str
    uid: str

    def problem(self) -> str:
        """Why this is not a valid reference, or an empty string. Checked because the parts become file names."""
        if not _UID.fullmatch(self.uid):
            return f"{self.uid!r} is not a valid claim UID"
        if not _NAMESPACE.fullmatch(self.namespace):
            return f"{self.namespace!r} is not a valid namespace name"
        if not _NAME.fullmatch(self.name):
            return f"{self.name!r} is not a valid claim name"
        return ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass
class Pod:
    """The pod that a claim is for."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class _RequiredNetworkData(t.TypedDict):
    interfaceName: str
    ips: list[str]


class NetworkData(_RequiredNetworkData, total=False):
    """NetworkDeviceData of the API: an interface as it is in the pod. `ips` include prefix lengths."""

    hardwareAddress: str


@dataclass(frozen=True)
class PreparedDevice:
    """One allocated device that is ready for its pod's containers.

    `requests` are named as in the allocation's results (`nic` or `nic/fast`); kubelet gets the main requests only.
    `cdi_ids` are the CDI devices of these requests (`cdi.write`), for the containers that reference a request.
    """

    pool: str
    device: str
    requests: tuple[str, ...]
    cdi_ids: tuple[str, ...] = ()
    share_id: str | None = None


@dataclass(frozen=True)
class DeviceHealth:
    """The health of one published or allocated device. `updated` is Unix time in seconds."""

    pool: str
    device: str
    health: str
    updated: float
    message: str = ""


@dataclass(frozen=True)
class AttachRequest:
    """The request of a createRuntime hook: a container with devices of claim `uid` is about to start.

    `netns` is the path of the container's network namespace, and is valid until attach returns. A hook opens the
    namespace and sends the file descriptor. `pid` is for messages only: a process ID may be reused, or belong to
    another PID namespace. `annotations` are those of the container. CRI-O adds the pod's annotations, which a tenant
    writes, to its own; so does containerd if configured that way.
    """

    uid: str
    netns: Path
    pid: int
    container: str
    annotations: t.Mapping[str, str] = field(default_factory=dict)

    def _annotated(self, part: str) -> dict[str, str]:
        """The annotations with this part of the pod's identity, by name: that of CRI-O and that of containerd."""
        names = (f"io.kubernetes.pod.{part}", f"io.kubernetes.cri.sandbox-{part}")
        return {name: self.annotations[name] for name in names if self.annotations.get(name)}

    def _identity(self, part: str) -> str:
        values = set(self._annotated(part).values())
        return values.pop() if len(values) == 1 else ""

    @property
    def contradiction(self) -> str:
        """The names of two annotations that contradict each other about the pod, or an empty string. A runtime writes
        only one of them, so the pod's author wrote the other."""
        for part in ("uid", "namespace", "name"):
            annotated = self._annotated(part)
            if len(set(annotated.values())) > 1:
                return " and ".join(annotated)
        return ""

    @property
    def pod_uid(self) -> str:
        """The pod's UID in the annotations of containerd or CRI-O; empty if it is missing or contradictory."""
        return self._identity("uid")

    @property
    def pod_namespace(self) -> str:
        """The pod's namespace; as for `pod_uid`, empty if missing or contradictory."""
        return self._identity("namespace")

    @property
    def pod_name(self) -> str:
        """The pod's name; as for `pod_uid`, empty if missing or contradictory."""
        return self._identity("name")


class Service(t.Protocol):
    """The driver's operations. All methods are thread-safe and may be called again after any outcome.

    They raise DriverError with a message for the pod's owner; after Busy, a hook retries. Any other exception is a bug
    in the driver: it is logged, and the caller gets the error "the driver failed".
    """

    def prepare(self, claim: ClaimRef) -> t.Sequence[PreparedDevice]:
        """Prepare a claim's devices; idempotent. Returns every device of the claim that this driver serves."""

    def unprepare(self, claim: ClaimRef) -> None:
        """Return all devices of a claim to the node and remove its files. An unknown claim is not an error."""

    def attach(self, request: AttachRequest) -> None:
        """Move a claim's devices into its pod; idempotent. Returns when they are ready for use."""

    def health(self) -> t.Sequence[DeviceHealth]:
        """The health of all published and allocated devices of this node. Called every few seconds; must not block."""
