# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A program for a lab node, with shares of a card by its VFs. It uses the driver's objects, and two network namespaces
as pods. The claims are as a scheduler would write them, and there is no API server.

It reads JSON and writes JSON (`main`). With `ports` "netdevsim", VF settings are made on netdevsim's VFs with the same
numbers, as igb has no minimum rates and no switchdev mode. The interfaces are still those of the card's VFs.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import time
import typing as t
from pathlib import Path

import driver_changes  # this module and the next two are copied beside this file
from fake_cluster import NODE, FakeCluster, attach_with_retries, sandbox_annotations, start_service
from killed import killed_at
from lanewise_driver.base import files
from lanewise_driver.base.calls import AttachRequest, ClaimRef
from lanewise_driver.base.objects import Object
from lanewise_driver.base.paths import Paths
from lanewise_driver.base.settings import Settings, read
from lanewise_driver.claims import service as claims
from lanewise_driver.claims import share_report
from lanewise_driver.claims.records import ATTACHED, PREPARED
from lanewise_driver.kernel import vf
from lanewise_driver.publish.inventory import Inventory

NAMESPACE = "team-a"
SIMULATED = "netdevsim7"
FOLDER = Path("/run/shares")


def run(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


class ShareNode:
    """The driver on a node that divides the card at the PCI address `pf`. Pods are the namespaces pod0 and pod1."""

    def __init__(self, pf: str, simulated: bool) -> None:
        self.pf, self.simulated = pf, simulated
        self.paths = Paths(
            plugin_dir=FOLDER / "plugin",
            registry_dir=FOLDER / "registry",
            run_dir=FOLDER / "run",
            cdi_dir=FOLDER / "cdi",
            settings=FOLDER / "none.yml",
            hook_python=Path(sys.executable),
        )
        self.paths.make()
        self.cluster = FakeCluster()
        self.settings = self.with_rule()

    def with_rule(self, **more: t.Any) -> Settings:
        rule = {"select": {"type": "pf"}, "bandwidth": "1G", "step": "1M", **more}
        return read({"node_name": NODE, "shares": [rule]})

    def service(self, inventory: Inventory | None = None) -> claims.Service:
        """A newly started driver. With an inventory, it has already read the node."""
        return start_service(self.paths, lambda: self.settings, self.cluster, inventory)

    @property
    def device(self) -> str:
        return f"pci-{self.pf.replace(':', '-').replace('.', '-')}-share"

    def allocate(self, name: str, *bandwidths: str) -> ClaimRef:
        """A claim for shares of these bandwidths, as the scheduler allocates it. Its interfaces are net1, net2, ..."""
        results, configs = [], []
        for number, bandwidth in enumerate(bandwidths, 1):
            request = f"nic-{number}"
            result: Object = {"request": request, "driver": "lanewise.dev", "pool": NODE, "device": self.device}
            result["shareID"] = f"share-{name}-{number}"
            results.append({**result, "consumedCapacity": {"bandwidth": bandwidth, "vfs": "1"}})
            parameters = {
                "apiVersion": "lanewise.dev/v1alpha1",
                "kind": "InterfaceConfig",
                "name": f"net{number}",
            }
            opaque = {"driver": "lanewise.dev", "parameters": parameters}
            configs.append({"source": "FromClaim", "requests": [request], "opaque": opaque})
        return self.cluster.allocate(NAMESPACE, name, results, configs)

    def attach(self, service: claims.Service, claim: ClaimRef, pod: int) -> None:
        """Prepare and attach a claim to a pod."""
        service.prepare(claim)
        request = AttachRequest(claim.uid, Path(f"/run/netns/pod{pod}"), 0, "c", sandbox_annotations(claim))
        attach_with_retries(service, request)

    # read by iproute2

    def rates(self) -> list[tuple[int, int]]:
        """The minimum and maximum rates of VFs 0 and 1 in Mbit/s, by devlink or by the interface."""
        return self._by_devlink() if self._switchdev else self._by_interface()

    def _by_interface(self) -> list[tuple[int, int]]:
        (link,) = json.loads(run("ip", "-json", "-details", "link", "show", self._pf_interface))
        return [(entry["rate"]["min_tx"], entry["rate"]["max_tx"]) for entry in link["vfinfo_list"]]

    @staticmethod
    def _by_devlink() -> list[tuple[int, int]]:
        shown = json.loads(run("devlink", "-j", "port", "function", "rate", "show"))["rate"]
        names = sorted(name for name in shown if f"/{SIMULATED}/" in name and "type" in shown[name])
        return [tuple(shown[name].get(key, 0) * 8 // 10**6 for key in ("tx_share", "tx_max")) for name in names]  # type: ignore[misc]

    def spoofchk(self) -> list[bool]:
        """Whether source addresses of VFs 0 and 1 are checked; empty in switchdev mode, which has no such setting."""
        if self._switchdev:
            return []
        (link,) = json.loads(run("ip", "-json", "-details", "link", "show", self._pf_interface))
        return [entry["spoofchk"] for entry in link["vfinfo_list"]]

    def disable_spoofchk(self) -> None:
        """Let source addresses of VF 0 be unchecked, as an administrator's setting."""
        if not self._switchdev:
            run("ip", "link", "set", self._pf_interface, "vf", "0", "spoofchk", "off")

    @functools.cached_property
    def _switchdev(self) -> bool:
        return self.simulated and "switchdev" in run("devlink", "dev", "eswitch", "show", f"netdevsim/{SIMULATED}")

    @functools.cached_property
    def _pf_interface(self) -> str:
        """The interface of the PF, which has the settings of its VFs."""
        parent = SIMULATED if self.simulated else self.pf
        links = json.loads(run("ip", "-json", "-details", "link"))
        return next(str(link["ifname"]) for link in links if link.get("parentdev") == parent)

    def files(self) -> list[str]:
        """The files of claims that remain on disk."""
        paths = [path for path in FOLDER.rglob("*") if not path.is_dir() and not path.name.endswith(files.UNFINISHED)]
        of_claims = [path for path in paths if path != self.paths.share_factors]
        return sorted(str(path) for path in of_claims if path.parent != self.paths.pending_status_dir)


def simulate() -> None:
    """Redirect the settings of the card's VFs to netdevsim's VFs."""
    real = vf.function

    def function(address: str, root: str = vf.PCI) -> vf.Function | None:
        found = real(address, root)
        return found and vf.Function(SIMULATED, found.index, "netdevsim")

    vf.function = function


#: Settings that reduce shares of 300M and 500M to three quarters.
CHANGED = {"bandwidth": "600M", "factor": 2}


def interfaces(pod: int) -> list[str]:
    return sorted(entry["ifname"] for entry in json.loads(run("ip", "-n", f"pod{pod}", "-json", "link")))


def life(node: ShareNode) -> Object:
    """Attach two shares, change the settings and detach the shares. Then attach both for one claim. Returns what was
    published, and the state after each step."""
    node.disable_spoofchk()
    reported: Object = {"before": node.rates(), "checked before": node.spoofchk()}
    service = node.service()
    published = [device for device in service.inventory.refresh().devices if device["name"] == node.device]
    reported["published"] = published[0]["capacity"]
    big, small = node.allocate("big", "500M"), node.allocate("small", "300M")
    node.attach(service, big, 0)
    reported["one"] = node.rates()
    node.attach(service, small, 1)
    reported["both"], reported["checked"] = node.rates(), node.spoofchk()
    reported["pods"] = [interfaces(0), interfaces(1)]
    reported["held"] = sorted(str(share.device.known.address) for nic in service.shares.nics() for share in nic.shares)
    (nic,) = share_report.shares(service.ledger.records(), service.ledger.boot, service.inventory)
    reported["reported"] = [[share["inForce"], share["ceiling"]] for share in nic["shares"]]
    node.settings = node.with_rule(**CHANGED)
    service.inventory.refresh()
    assert service.shares.refresh()
    reported["changed"] = node.rates()
    service.unprepare(big)
    reported["small alone"] = node.rates()
    service.unprepare(small)
    pair = node.allocate("pair", "200M", "100M")
    node.attach(service, pair, 0)
    reported["pair"], reported["pair's pod"] = node.rates(), interfaces(0)
    service.unprepare(pair)
    reported.update({"after": node.rates(), "checked after": node.spoofchk()})
    return {**reported, "pods after": [interfaces(0), interfaces(1)], "files": node.files()}


class KilledOperation:
    """An operation on a node with two claims for shares: `stayer`, which stays in pod 0, and `goer` for pod 1. The
    driver is killed before chosen changes of the operation, and the state after its restart is checked."""

    def __init__(self, node: ShareNode, operation: str) -> None:
        self.node, self.operation = node, operation
        self.stayer, self.goer = node.allocate("stayer", "300M"), node.allocate("goer", "500M")
        self.clean = node.rates()
        #: A running driver that is not killed. The killed one uses its inventory.
        self.driver = node.service()
        node.attach(self.driver, self.stayer, 0)
        self.alone = node.rates()
        node.attach(self.driver, self.goer, 1)
        self.both = node.rates()
        self._change(node.service())
        self.changed = node.rates()
        node.settings = node.with_rule()
        assert self.driver.shares.refresh()
        self.driver.unprepare(self.goer)
        assert node.rates() == self.alone
        distinct = {tuple(entry) for entry in (self.clean, self.alone, self.both, self.changed)}
        assert len(distinct) == 4, (self.clean, self.alone, self.both, self.changed)

    def _change(self, service: claims.Service) -> None:
        self.node.settings = self.node.with_rule(**CHANGED)
        service.inventory.refresh()
        assert service.shares.refresh()

    def kill_before(self, step: int) -> bool:
        """Kill the driver before this change of the operation. Returns whether there is such a change."""
        node = self.node
        if self.operation != "attach":
            node.attach(self.driver, self.goer, 1)
        victim = node.service(self.driver.inventory)
        act = {
            "attach": lambda: node.attach(victim, self.goer, 1),
            "detach": lambda: victim.unprepare(self.goer),
            "change": lambda: self._change(victim),
        }[self.operation]
        killed = killed_at(step, act, driver_changes.watch)
        if self.operation == "change":
            node.settings = node.with_rule(**CHANGED)
        self.driver = node.service()
        assert self.driver.recover() and self.driver.shares.settled, step
        self._check(step)
        node.settings = node.with_rule()
        self.driver.unprepare(self.goer)
        if self.operation == "change":
            self.driver.inventory.refresh()
            assert self.driver.shares.refresh()
        assert node.rates() == self.alone and interfaces(1) == ["lo"], (step, node.rates(), interfaces(1))
        return killed

    def _check(self, step: int) -> None:
        record = self.driver.store.load(self.goer.uid)
        attached = record is not None and record.phase == ATTACHED
        assert record is None or record.phase in (PREPARED, ATTACHED), (step, record)
        wanted = self.changed if self.operation == "change" else self.both if attached else self.alone
        assert attached or self.operation != "change", step
        assert self.node.rates() == wanted, (step, attached, self.node.rates(), wanted)
        assert ("net1" in interfaces(1)) == attached, (step, interfaces(1))

    def end(self) -> None:
        self.driver.unprepare(self.stayer)
        assert self.node.rates() == self.clean and self.node.files() == [], (self.node.rates(), self.node.files())


def kills(node: ShareNode, operation: str, first: int, stride: int) -> Object:
    """Kill the driver before every `stride`th change of an operation, from `first` on. Returns the number of kills, and
    the seconds that they took."""
    start, killed, step = time.monotonic(), KilledOperation(node, operation), first
    while killed.kill_before(step):
        step += stride
    killed.end()
    return {"kills": (step - first) // stride, "seconds": round(time.monotonic() - start)}


def main() -> None:
    request = json.load(sys.stdin)
    node = ShareNode(request["pf"], request["ports"] == "netdevsim")
    if node.simulated:
        simulate()
    operation = request["does"]
    if operation == "life":
        print(json.dumps(life(node)))
    else:
        print(json.dumps(kills(node, operation, request["first"], request["stride"])))


if __name__ == "__main__":
    main()
