# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The driver's objects in a program on a lab node. Claims are as a scheduler would write them, there is no API server,
and pods are network namespaces."""

from __future__ import annotations

import json
import subprocess
import sys
import typing as t
from pathlib import Path

from fake_cluster import (  # copied beside this file
    NODE,
    FakeCluster,
    attach_with_retries,
    sandbox_annotations,
    start_service,
)
from lanewise_driver.base.calls import AttachRequest, ClaimRef
from lanewise_driver.base.objects import Object
from lanewise_driver.base.paths import Paths
from lanewise_driver.base.settings import read
from lanewise_driver.claims import service as claims

NAMESPACE = "team-a"


def run(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


class DriverNode:
    """The driver on a node. It writes all its files below `folder`."""

    def __init__(self, folder: Path, settings: Object) -> None:
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
        self.cluster = FakeCluster()
        self.change(settings)

    def change(self, settings: Object) -> None:
        """Change the settings."""
        self.settings = read({"node_name": NODE, **settings})
        self.paths.settings.write_text(json.dumps({"node_name": NODE, **settings}))

    def service(self) -> claims.Service:
        """A newly started driver."""
        return start_service(self.paths, lambda: self.settings, self.cluster)

    def allocate(self, name: str, results: t.Sequence[Object], configs: t.Mapping[str, Object]) -> ClaimRef:
        """A claim with these allocation results, and with configurations by request."""
        head = {"apiVersion": "lanewise.dev/v1alpha1", "kind": "InterfaceConfig"}
        from_claim = [
            {
                "source": "FromClaim",
                "requests": [request],
                "opaque": {"driver": "lanewise.dev", "parameters": {**head, **fields}},
            }
            for request, fields in configs.items()
        ]
        allocated = [{"driver": "lanewise.dev", "pool": NODE, **result} for result in results]
        return self.cluster.allocate(NAMESPACE, name, allocated, from_claim)

    def attach(self, service: claims.Service, claim: ClaimRef, pod: int) -> None:
        """Prepare and attach a claim. Pod number N is the namespace podN."""
        service.prepare(claim)
        attach_with_retries(
            service, AttachRequest(claim.uid, Path(f"/run/netns/pod{pod}"), 0, "c", sandbox_annotations(claim))
        )


def device(address: str) -> str:
    """The device name of a PCI function."""
    return f"pci-{address.replace(':', '-').replace('.', '-')}"
