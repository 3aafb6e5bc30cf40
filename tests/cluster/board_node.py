# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A board's devices on a real scheduler, and pods that allocate and release them."""

from __future__ import annotations

import collections
import random
import time
import typing as t
from dataclasses import dataclass, field

from ansible_collections.lanewise.dra.plugins.module_utils.dra.apiserver.validate import validate
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.allocator import Allocation, Result, allocate
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.search_devices import identify
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offer import Offer
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.server import Server
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.slices import slices
from ansible_collections.lanewise.dra.tests.cluster import boards
from ansible_collections.lanewise.dra.tests.cluster.boards import Board, Map, aligned, has_pairs
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane

NAMESPACE = "boards"
RESOURCE = "/apis/resource.k8s.io/v1"
CLAIMS = f"{RESOURCE}/namespaces/{NAMESPACE}/resourceclaims"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
#: How long a pod may stay pending although its devices are free: the scheduler learns of released devices with a delay.
LATE_SECONDS = 20.0


def prepare(plane: ControlPlane, all_boards: t.Iterable[Board]) -> None:
    """Create the namespace and the boards' device classes."""
    plane.add_namespace(NAMESPACE)
    classes = {name: entry for board in all_boards for name, entry in board.classes.items()}
    for deviceclass in classes.values():
        plane.expect("POST", f"{RESOURCE}/deviceclasses", deviceclass)


@dataclass
class Counts:
    """What happened on a node.

    pairs: decided claims for pairs; `bound` and `waiting` are their outcomes.
    singles: decided claims for one GPU or NIC.
    late: claims that were allocated only after a first rejection.
    slowest: seconds of the slowest decision.
    sizes: numbers of claims by number of pairs.
    faults: unexpected decisions."""

    pairs: int = 0
    bound: int = 0
    waiting: int = 0
    singles: int = 0
    late: int = 0
    slowest: float = 0.0
    sizes: collections.Counter[int] = field(default_factory=collections.Counter)
    faults: list[str] = field(default_factory=list)


def unaligned(pairs: Map, got: t.Sequence[tuple[str, Offer]], count: int) -> list[str]:
    """What is wrong, according to the map, with the devices of a claim for `count` pairs."""
    found: dict[str, dict[str, str]] = {}
    for request, offer in got:
        kind, _dash, number = request.partition("/")[0].partition("-")
        found.setdefault(number, {})[kind] = offer.address
    wrong = [] if len(found) == count else [f"{len(found)} pairs instead of {count}"]
    addresses = [address for pair in found.values() for address in pair.values()]
    wrong += ["a device is missing or used twice"] if len(set(addresses)) < 2 * count else []
    for pair in found.values():
        if set(pair) != {"gpu", "nic"} or not aligned(pairs, pair["gpu"], pair["nic"]):
            wrong.append(f"not aligned: {pair}")
    return wrong


class Node:
    """A board as a node of the cluster, and the pods that hold its devices."""

    def __init__(self, plane: ControlPlane, board: Board, engine: t.Any, seed: int) -> None:
        self.plane, self.board, self.engine = plane, board, engine
        self.rng = random.Random(f"{seed} {board.name}")
        self.offers = [Server(plane.version).stored(offer) for offer in board.offers]
        self.live: dict[str, list[Result]] = {}
        self.counts = Counts()
        plane.add_node(board.name)
        for resource_slice in slices(self.offers):
            assert not validate(resource_slice, plane.version)
            plane.expect("POST", f"{RESOURCE}/resourceslices", resource_slice)

    # free devices, without asking the scheduler

    def _unallocated(self, addresses: t.Iterable[str]) -> set[str]:
        held = {result.offer.address for results in self.live.values() for result in results}
        return {address for address in addresses if address not in held}

    def free(self) -> tuple[set[str], set[str]]:
        """The addresses of free GPUs and free RDMA NICs that a pod could get."""
        untainted = [offer for offer in self.offers if not offer.device.get("taints")]
        usable = {device.address for device in untainted}
        gpus, nics = boards.gpus_of(untainted), [nic for nic in self.board.nics if nic in usable]
        return self._unallocated(gpus), self._unallocated(nics)

    # one claim

    def start(self, name: str, spec: Object) -> None:
        self.plane.expect("POST", CLAIMS, {"metadata": {"name": name}, "spec": spec})
        body = {"name": "c", "image": "none.example.com/none", "resources": {"claims": [{"name": "d"}]}}
        pod = {
            "metadata": {"name": name},
            "spec": {
                "nodeSelector": {"kubernetes.io/hostname": self.board.name},
                "terminationGracePeriodSeconds": 0,
                "containers": [body],
                "resourceClaims": [{"name": "d", "resourceClaimName": name}],
            },
        }
        self.plane.expect("POST", PODS, pod)

    def outcome(self, name: str, should_fit: bool) -> tuple[list[tuple[str, Offer]], str]:
        """The requests and devices of a claim, or the scheduler's message.

        A rejection of a pod that should fit counts only after LATE_SECONDS."""
        began = time.monotonic()
        first_rejection = 0.0

        def decided() -> t.Any:
            nonlocal first_rejection
            pod = self.plane.expect("GET", f"{PODS}/{name}")
            if pod["spec"].get("nodeName"):
                return self.plane.expect("GET", f"{CLAIMS}/{name}")
            for condition in pod.get("status", {}).get("conditions", ()):
                if condition["type"] == "PodScheduled" and condition["status"] == "False":
                    first_rejection = first_rejection or time.monotonic()
                    if not should_fit or time.monotonic() - first_rejection > LATE_SECONDS:
                        return condition["message"]
            return None

        answer = self.plane.wait_for(decided, f"the scheduler's decision on {name}", 60)
        self.counts.slowest = max(self.counts.slowest, (first_rejection or time.monotonic()) - began)
        if isinstance(answer, str):
            return [], answer
        self.counts.late += bool(first_rejection)
        devices = self.board.devices
        results = answer["status"]["allocation"]["devices"]["results"]
        return [(result["request"], devices[result["driver"], result["device"]]) for result in results], ""

    def stop(self, name: str) -> None:
        self.plane.expect("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")
        for path in (f"{PODS}/{name}", f"{CLAIMS}/{name}"):
            if path.startswith(CLAIMS):
                self.plane.expect("DELETE", path)
            self.plane.wait_for(lambda path=path: self.plane.request("GET", path)[0] == 404, f"the deletion of {path}")
        self.live.pop(name, None)

    def check_claim(self, name: str, spec: Object, count: int) -> None:
        """Submit one claim and compare the scheduler's decision with the map and with the offline allocator."""
        board, counts = self.board, self.counts
        held = [result for results in self.live.values() for result in results]
        predicted = allocate([spec], board.classes, self.offers, self.engine, held=held)
        gpus, nics = self.free()
        kind = next(iter(request["name"] for request in spec["devices"]["requests"]))
        should_fit = has_pairs(board.pairs, gpus, nics, count) if count else bool({"gpu": gpus, "nic": nics}[kind])
        self.start(name, spec)
        got, message = self.outcome(name, should_fit)
        state = f"{name} ({board.form}, {count} pairs; free {sorted(gpus)} {sorted(nics)})"
        if bool(got) != should_fit:
            counts.faults.append(f"{state}: {'bound' if got else 'pending'}, unlike in the map; {message}")
        if "timed out" in message:
            counts.faults.append(f"{state}: {message}")
        expected = (
            [(result.request, result.id) for result in predicted.results] if isinstance(predicted, Allocation) else []
        )
        if expected != [(request, identify(offer)) for request, offer in got]:
            counts.faults.append(f"{state}: offline {predicted}, scheduler {got}")
        if count:
            counts.faults += [f"{state}: {fault}" for fault in unaligned(board.pairs, got, count)] if got else []
            counts.sizes[count] += 1
            counts.pairs += 1
            counts.bound += bool(got)
            counts.waiting += not got
        else:
            counts.singles += 1
        if got:
            self.live[name] = [Result(0, request, offer) for request, offer in got]
        else:
            self.stop(name)

    def run_claims(self, count: int) -> Counts:
        """Create and delete claims at random until `count` claims for pairs were decided."""
        number, rng, board = 0, self.rng, self.board
        sizes = sorted(board.claims)
        while self.counts.pairs < count and not self.counts.faults:
            number += 1
            # the board alternately fills up and empties
            while self.live and rng.random() < (0.55 if number // 12 % 2 else 0.15):
                self.stop(rng.choice(sorted(self.live)))
            name = f"{board.name}-{number}"
            if rng.random() < 0.3:
                self.check_claim(name, board.single(rng.choice(["gpu", "nic"])), 0)
            else:
                size = rng.choice(sizes)
                self.check_claim(name, board.claims[size], size)
        for name in list(self.live):
            self.stop(name)
        return self.counts
