# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A substitute for the API server, annotations as of a container runtime, and the service of a driver with these.

The lab copies this file to its nodes, so it imports only the driver.
"""

from __future__ import annotations

import time
import typing as t

from lanewise_driver.base.calls import AttachRequest, ClaimRef
from lanewise_driver.base.errors import Busy
from lanewise_driver.base.objects import Object
from lanewise_driver.base.paths import Paths
from lanewise_driver.base.settings import Settings
from lanewise_driver.claims.claim_status import Writer
from lanewise_driver.claims.service import Service
from lanewise_driver.publish.inventory import Inventory

NODE = "node-a"
TIMEOUT_SECONDS = 60


class FakeCluster:
    """Answers the requests about claims and pods that the driver sends to an API server, from memory."""

    node = NODE

    def __init__(self) -> None:
        self.claims: dict[str, Object] = {}
        self.statuses: dict[str, t.Sequence[Object]] = {}
        #: The object, the reason and the note of each event.
        self.events: list[tuple[str, str, str]] = []

    def allocate(self, namespace: str, name: str, results: t.Sequence[Object], configs: t.Sequence[Object]) -> ClaimRef:
        """Add a claim with this allocation, reserved for the pod `pod-NAME`."""
        self.claims[name] = {
            "metadata": {"name": name, "namespace": namespace, "uid": f"0000-{name}"},
            "spec": {"devices": {}},
            "status": {
                "allocation": {"devices": {"results": list(results), "config": list(configs)}},
                "reservedFor": [{"resource": "pods", "name": f"pod-{name}", "uid": f"uid-pod-{name}"}],
            },
        }
        return ClaimRef(namespace, name, f"0000-{name}")

    def claim(self, namespace: str, name: str, meanwhile: t.Callable[[], None] | None = None) -> Object | None:
        if meanwhile:
            meanwhile()
        return self.claims.get(name)

    def pod(self, namespace: str, name: str) -> Object | None:
        return {"metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}"}, "spec": {"nodeName": NODE}}

    def event(self, regarding: Object, reason: str, note: str, warning: bool = False, action: str = "") -> None:
        self.events.append((regarding["metadata"]["name"], reason, note))

    def slices_of(self, driver: str) -> list[Object]:
        return []

    def set_claim_devices(self, namespace: str, name: str, uid: str, devices: t.Sequence[Object]) -> bool:
        self.statuses[name] = devices
        return True


def sandbox_annotations(claim: ClaimRef) -> dict[str, str]:
    """The annotations with which containerd describes the sandbox of the pod `pod-NAME` of a claim."""
    return {
        "io.kubernetes.cri.sandbox-uid": f"uid-pod-{claim.name}",
        "io.kubernetes.cri.sandbox-name": f"pod-{claim.name}",
        "io.kubernetes.cri.sandbox-namespace": claim.namespace,
    }


def attach_with_retries(service: Service, request: AttachRequest) -> None:
    """Call attach as a hook does: retry while the driver is busy."""
    end = time.monotonic() + TIMEOUT_SECONDS
    while True:
        try:
            return service.attach(request)
        except Busy:
            if time.monotonic() > end:
                raise
        time.sleep(0.01)


def start_service(
    paths: Paths,
    settings: t.Callable[[], Settings],
    cluster: t.Any,
    inventory: Inventory | None = None,
    writer: Writer | None = None,
    **more: t.Any,
) -> Service:
    """The service of a driver that has just started with these folders and `settings`. With an inventory, it has
    already read the node. `more` are other arguments of Service."""
    services: list[Service] = []
    inventory = inventory or Inventory(
        settings,
        lambda: services[0].held() if services else [],
        held_shares=lambda: services[0].shares.held() if services else {},
    )
    services.append(Service(paths, cluster, inventory, writer or Writer(cluster), **more))
    return services[0]
