# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A program for a lab node, with a claim for two NICs of two rails.

It reads JSON with `rails` (the rail of each PCI address), `ranges` (as in the driver's settings) and `does`. `attach`
attaches the claim to the namespace pod0 and prints its addresses by interface, `doctor` prints the lines of the
driver's doctor, and `end` ends the claim and prints the files that remain.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import typing as t
from pathlib import Path

from driver_node import DriverNode, device  # copied beside this file
from lanewise_driver import cli

JOB = "job"


class RailNode(DriverNode):
    """The driver on a node whose NICs have the PCI addresses and rails of `rails`."""

    def __init__(self, rails: t.Mapping[str, int], ranges: t.Sequence[t.Any]) -> None:
        self.rails = rails
        settings = {"rails": dict(rails), "rail_addresses": list(ranges), "metrics_address": ""}
        super().__init__(Path("/run/rails"), settings)

    def attach_job(self) -> dict[str, list[str]]:
        """Attach the claim. Returns the addresses of each interface in the pod."""
        names = {address: f"rail{rail}" for address, rail in self.rails.items()}
        results = [{"request": name, "device": device(address)} for address, name in names.items()]
        fields = {name: {"name": name, "railAddresses": True, "dad": "none"} for name in names.values()}
        claim, service = self.allocate(JOB, results, fields), self.service()
        self.attach(service, claim, 0)
        record = service.store.load(claim.uid)
        assert record
        found = [entry.network for entry in record.held if entry.network]
        return {str(entry["interfaceName"]): entry["ips"] for entry in found}

    def doctor(self) -> list[str]:
        """The output of `lanewise-driver doctor`."""
        reported = io.StringIO()
        folders = ("plugin-dir", "registry-dir", "run-dir", "cdi-dir", "settings")
        words = [f"--{name}={getattr(self.paths, name.replace('-', '_'))}" for name in folders]
        with contextlib.redirect_stdout(reported):
            cli.main([*words, "doctor"])
        return reported.getvalue().splitlines()

    def end(self) -> list[str]:
        """End the claim. Returns the records of claims that remain on disk."""
        self.service().unprepare(self.allocate(JOB, [], {}))
        return [str(path) for path in self.paths.state_dir.iterdir()]


def main() -> None:
    request = json.load(sys.stdin)
    node = RailNode(request["rails"], request["ranges"])
    actions: dict[str, t.Callable[[], t.Any]] = {"attach": node.attach_job, "doctor": node.doctor, "end": node.end}
    print(json.dumps(actions[request["does"]]()))


if __name__ == "__main__":
    main()
