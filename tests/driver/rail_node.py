# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A driver on a node with two NICs, nic0 on rail 0 and nic1 on rail 1, that assigns addresses of rails. Claims are as
the scheduler allocates them, and a FakeCluster answers the requests to an API server.

    python3 -m ...rail_node FOLDER RANGES

Run this in the node's network namespace. It reads commands, one JSON list per line: attach (claim, file of the pod's
network namespace), doctor, end (claim). It answers each with a line of JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import typing as t
from pathlib import Path

from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.tests.driver import folders
from ansible_collections.lanewise.dra.tests.driver.fake_cluster import (
    NODE,
    FakeCluster,
    sandbox_annotations,
    start_service,
)
from ansible_collections.lanewise.dra.tests.driver.plan_claims import config
from lanewise_driver import cli
from lanewise_driver.base.calls import AttachRequest, ClaimRef
from lanewise_driver.base.settings import read
from lanewise_driver.claims.claim_status import Writer
from lanewise_driver.claims.service import Service

NICS = ("nic0", "nic1")


class RailNode:
    """The driver and its folders. `ranges` are the rail addresses of the node, as the role writes them into the
    settings."""

    def __init__(self, folder: Path, ranges: t.Sequence[Object], **settings: t.Any) -> None:
        values: Object = {"node_name": NODE, "virtual_interfaces": list(NICS), "metrics_address": ""}
        values["rails"] = {name: rail for rail, name in enumerate(NICS)}
        values.update(settings, rail_addresses=list(ranges))
        self.paths = folders.flat(folder)
        self.paths.settings.write_text(json.dumps(values))
        self.settings = read(values)
        self.cluster = FakeCluster()
        self.status = Writer(self.cluster, settle=0.0)
        self.service = self.start()

    def start(self) -> Service:
        """The service of a driver that has just started with these folders."""
        return start_service(self.paths, lambda: self.settings, self.cluster, writer=self.status)

    def allocate(self, name: str, devices: t.Mapping[str, str], *configs: Object, **more: t.Any) -> ClaimRef:
        """Create a claim with these devices by request, and these configurations. `more` is added to each result."""
        results = [
            {"request": request, "driver": "lanewise.dev", "pool": NODE, "device": device, **more}
            for request, device in devices.items()
        ]
        return self.cluster.allocate("team-a", name, results, configs)

    def attach(self, claim: ClaimRef, netns: Path) -> None:
        """Prepare a claim, and attach it to a pod's network namespace."""
        self.service.prepare(claim)
        self.service.attach(AttachRequest(claim.uid, netns, 0, "c", sandbox_annotations(claim)))

    def attach_job(self, name: str, netns: Path) -> list[str]:
        """Attach a claim for both NICs, as rail0 and rail1 in the pod. Returns their addresses."""
        configs = [
            config({"name": f"rail{rail}", "railAddresses": True, "dad": "none"}, f"rail{rail}") for rail in (0, 1)
        ]
        claim = self.allocate(name, {f"rail{rail}": f"net-{nic}" for rail, nic in enumerate(NICS)}, *configs)
        self.attach(claim, netns)
        record = self.service.store.load(claim.uid)
        assert record
        return [address for device in record.held for address in (device.network or {"ips": []})["ips"]]

    def doctor(self) -> list[str]:
        """The lines that `lanewise-driver doctor` prints."""
        reported = io.StringIO()
        options = ("plugin-dir", "registry-dir", "run-dir", "cdi-dir", "settings")
        words = [f"--{name}={getattr(self.paths, name.replace('-', '_'))}" for name in options]
        with contextlib.redirect_stdout(reported):
            cli.main([*words, "doctor"])
        return reported.getvalue().splitlines()


def main(folder: str, ranges: str) -> None:
    node = RailNode(Path(folder), json.loads(ranges))
    print("ready", flush=True)
    for line in sys.stdin:
        command, *words = json.loads(line)
        answer: t.Any = None
        if command == "attach":
            answer = node.attach_job(words[0], Path(words[1]))
        elif command == "doctor":
            answer = node.doctor()
        elif command == "end":
            node.service.unprepare(ClaimRef("team-a", words[0], f"0000-{words[0]}"))
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
