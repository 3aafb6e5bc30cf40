# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The driver's own objects in a program on a node of the lab. Claims are what a scheduler would write, no API server is
asked, and pods are network namespaces."""

from __future__ import annotations

import json
import subprocess
import sys
import typing as t
from pathlib import Path

from answers import NODE, Cluster, annotations, attach  # beside this file there
from lanewise_driver.base.calls import AttachRequest, ClaimRef
from lanewise_driver.base.paths import Paths
from lanewise_driver.base.settings import read
from lanewise_driver.claims import service as claims
from lanewise_driver.claims.claim_status import Writer
from lanewise_driver.publish.inventory import Inventory

NAMESPACE = "team-a"
Object = dict[str, t.Any]


def run(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


class DriverNode:
    """A node; `folder` is for all that the driver writes, `given` its settings."""

    def __init__(self, folder: Path, given: Object) -> None:
        self.folder = folder
        self.paths = Paths(
            plugin_dir=folder / "plugin",
            registry_dir=folder / "registry",
            run_dir=folder / "run",
            cdi_dir=folder / "cdi",
            settings=folder / "driver.yml",
            hook_python=Path(sys.executable),
        )
        self.paths.make()
        self.cluster = Cluster()
        self.change(given)

    def change(self, given: Object) -> None:
        """Change the settings."""
        self.settings = read({"node_name": NODE, **given})
        self.paths.settings.write_text(json.dumps({"node_name": NODE, **given}))

    def service(self) -> claims.Service:
        """A driver that has just started."""
        made: list[claims.Service] = []
        inventory = Inventory(
            lambda: self.settings,
            lambda: made[0].held() if made else [],
            held_shares=lambda: made[0].shares.held() if made else {},
        )
        made.append(
            claims.Service(self.paths, t.cast(t.Any, self.cluster), inventory, Writer(t.cast(t.Any, self.cluster)))
        )
        return made[0]

    def allocate(self, name: str, results: t.Sequence[Object], configs: t.Mapping[str, Object]) -> ClaimRef:
        """A claim with these results, and what it sets for each request."""
        head = {"apiVersion": "lanewise.dev/v1alpha1", "kind": "InterfaceConfig"}
        mine = [
            {
                "source": "FromClaim",
                "requests": [request],
                "opaque": {"driver": "lanewise.dev", "parameters": {**head, **fields}},
            }
            for request, fields in configs.items()
        ]
        own = [{"driver": "lanewise.dev", "pool": NODE, **one} for one in results]
        return self.cluster.allocate(NAMESPACE, name, own, mine)

    def attach(self, service: claims.Service, claim: ClaimRef, pod: int) -> None:
        """Prepare and attach; the pod is the namespace podN."""
        service.prepare(claim)
        attach(service, AttachRequest(claim.uid, Path(f"/run/netns/pod{pod}"), 0, "c", annotations(claim)))


def device(address: str) -> str:
    """The name of the device of a PCI function."""
    return f"pci-{address.replace(':', '-').replace('.', '-')}"
