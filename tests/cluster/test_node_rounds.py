# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Pods are created and deleted at random on nodes with NVIDIA's driver. No pod may get a pair that is not aligned, or a
wrong map of its devices.

A pod's devices are read inside the pod, as device numbers and MAC addresses, and checked with the machine's tree alone,
without code of the collection. LANEWISE_ROUNDS is the number of rounds on the listed machines together, 8 by default.
LANEWISE_MACHINES lists other machines, separated by commas: names in tests/machines/descriptions, or paths of such
files.
"""

from __future__ import annotations

import collections
import os
import random
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.cluster import gpu_claims
from ansible_collections.lanewise.dra.tests.cluster.machine_tree import MachineTree, Seen
from ansible_collections.lanewise.dra.tests.cluster.node import Node
from environment import Missing  # tools/cluster.py has put tools/ on sys.path

pytest.importorskip("lanewise_driver", reason="the driver's package is not installed: 'make test ONLY=node' does it")
pytest.importorskip("cel_expr_python", reason="needs cel-expr-python")

from ansible_collections.lanewise.dra.tests.cluster import map_judge
from ansible_collections.lanewise.dra.tests.cluster.gpu_node import GpuNode

PODS = "/api/v1/namespaces/default/pods"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
MACHINES = (os.environ.get("LANEWISE_MACHINES") or "hgx-h100,dgx-a100,hgx-b200,gb200").split(",")
ROUNDS = -(-int(os.environ.get("LANEWISE_ROUNDS") or 8) // len(MACHINES))  # on each machine
SEED = 20261124
#: The numbers of GPUs and NICs in a claim of each template.
DEVICE_COUNTS = {"pair": (1, 1), "two-pairs": (2, 2), "gpu": (1, 0), "nic": (0, 1)}
#: A GPU, one of its nearest NICs, and another NIC, from the sources of the machine descriptions.
KNOWN = {
    "hgx-h100": ("0000:d9:00.0", "0000:da:00.0", "0000:49:00.0"),
    "dgx-a100": ("0000:07:00.0", "0000:0c:00.0", "0000:4b:00.0"),
    "hgx-b200": ("0000:1b:00.0", "0000:18:00.0", "0000:40:00.0"),
    "gb200": ("0008:01:00.0", "0002:03:00.0", "0010:03:00.0"),
}


def check_tree(tree: MachineTree, gpu: str, near: str, far: str) -> None:
    """Check that the tree distinguishes aligned pairs from others."""
    assert tree.aligned(Seen([gpu], [near])) and not tree.aligned(Seen([gpu], [far]))
    other = next(entry for entry in tree.gpus if tree.aligned(Seen([entry], [far])))
    assert tree.aligned(Seen([gpu, other], [far, near]))
    assert not tree.aligned(Seen([gpu, other], [near, near])) and not tree.aligned(Seen([gpu], []))
    assert tree.max_pairs([gpu, other], [near, far]) == 2 and tree.max_pairs([gpu], [far]) == 0


class Rounds:
    """Pods with random claims on a node."""

    def __init__(self, machine: GpuNode, seed: str) -> None:
        self.machine, self.tree, self.node = machine, machine.judge, machine.node
        self.rng = random.Random(seed)
        self.live: dict[str, tuple[str, Seen]] = {}  # the template and the devices, by the pod's name
        self.created = 0
        self.counts: collections.Counter[str] = collections.Counter()
        self.faults: list[str] = []

    def run(self) -> None:
        """Delete some pods and start others. Remove those that must wait because devices are in use."""
        rng = self.rng
        self.end([name for name in self.live if rng.random() < 0.5])
        started = {}
        for _number in range(rng.randint(1, len(self.tree.gpus))):
            self.created += 1
            started[f"pod-{self.created}"] = rng.choices(list(DEVICE_COUNTS), (4, 2, 1, 1))[0]
        for name, template in started.items():
            self.node.plane.expect("POST", PODS, self.machine.pod(name, template))
        waiting = set(started)
        self.node.plane.wait_for(
            lambda: self._settled(started, waiting), "all pods to start or to be unschedulable", 120
        )
        self.counts.update(rounds=1, pods=len(started), waiting=len(waiting))
        self.end(sorted(waiting))

    def end(self, names: t.Sequence[str]) -> None:
        """Delete pods, and wait until their claims are deleted, too."""
        for name in names:
            self.node.delete_pod(name, wait=False)
            self.live.pop(name, None)
        for path in (PODS, CLAIMS):
            self.node.plane.wait_for(lambda path=path: not self._exist(path, names), f"the deletion of {names}", 120)

    def _exist(self, path: str, names: t.Sequence[str]) -> bool:
        """Whether some of these pods, or objects that they own, still exist."""
        found = [item["metadata"] for item in self.node.plane.expect("GET", path)["items"]]
        owners = {entry["name"] for meta in found for entry in [meta, *meta.get("ownerReferences", ())]}
        return not owners.isdisjoint(names)

    def _settled(self, started: t.Mapping[str, str], waiting: set[str]) -> bool:
        """Check the pods that have started. Returns whether all others are unschedulable with their devices in use."""
        unschedulable = set()
        for pod in self.node.plane.expect("GET", PODS)["items"]:
            name, status = pod["metadata"]["name"], pod["status"]
            conditions = {condition["type"]: condition["status"] for condition in status.get("conditions", ())}
            if name in waiting and conditions.get("Ready") == "True":
                waiting.remove(name)
                self.check_pod(name, started[name], self.machine.seen(name))
            elif name in waiting and conditions.get("PodScheduled") == "False":
                unschedulable.add(name)
        return unschedulable == waiting and not any(self.has_room(started[name]) for name in waiting)

    def check_pod(self, name: str, template: str, seen: Seen) -> None:
        """Check the devices of a pod that has started."""
        counts = DEVICE_COUNTS[template]
        held = [set(sum(devices, [])) for devices in zip(*(entry for _template, entry in self.live.values()))]
        self.live[name] = (template, seen)
        self.counts["pairs"] += min(counts)
        description = f"{name}, {template}: {seen}"
        if (len(seen.gpus), len(seen.nics)) != counts:
            self.faults.append(f"{description} has other numbers of devices than its claim")
        elif min(counts) and not self.tree.aligned(seen):
            self.faults.append(f"{description} is not aligned")
        if held and any(set(devices) & others for devices, others in zip(seen, held)):
            self.faults.append(f"{description} has a device of another pod")
        if min(counts):
            self.check_map(name, description)

    def check_map(self, name: str, description: str) -> None:
        """Check the map of a pod with pairs. Once, also check that map_judge detects wrong maps."""
        pod_map = map_judge.pod_map(self.node, name)
        wrong = map_judge.faults(self.machine, name, pod_map)
        wrong += map_judge.variable_faults(map_judge.environment(self.node, name), pod_map)
        self.faults += [f"{description}, its map: {entry}" for entry in wrong]
        self.counts["maps"] += 1
        if len(pod_map["pairs"]) == 2 and not self.counts["wrong maps found"]:
            for change, wrong_map in map_judge.wrong_maps(pod_map).items():
                assert map_judge.faults(self.machine, name, wrong_map), change
                self.counts["wrong maps found"] += 1

    def has_room(self, template: str) -> bool:
        """Whether the free devices suffice for a pod of this template, according to the tree."""
        free = [
            [
                address
                for address in addresses
                if not any(address in devices[kind] for _template, devices in self.live.values())
            ]
            for kind, addresses in enumerate((self.tree.gpus, self.tree.fabric_nics))
        ]
        gpus, nics = DEVICE_COUNTS[template]
        return self.tree.max_pairs(*free) >= gpus if gpus == nics else len(free[0]) >= gpus and len(free[1]) >= nics


def run(node: Node, machine: str | Path, folder: Path) -> None:
    """Run the rounds on a machine, given by its name or by the file of its description."""
    try:
        gpus = GpuNode(node, machine, folder, "0.5.0")
    except Missing as missing:
        pytest.skip(str(missing))
    rounds = Rounds(gpus, f"{SEED} {Path(machine).stem}")
    try:
        gpu_claims.apply(node, gpu_claims.variables("0.5.0", gpu_claims.templates(gpus.judge)), gpus.facts)
        if machine in KNOWN:
            check_tree(gpus.judge, *KNOWN[str(machine)])
        for _number in range(ROUNDS):
            rounds.run()
        print(f"{Path(machine).stem}: {dict(rounds.counts)}, {len(rounds.faults)} faults")
        assert not rounds.faults, rounds.faults
        assert rounds.counts["rounds"] == ROUNDS and rounds.counts["pairs"] >= rounds.counts["maps"] > 0
        assert rounds.counts["pairs"] >= ROUNDS
    finally:
        rounds.end([item["metadata"]["name"] for item in node.plane.expect("GET", PODS)["items"]])
        gpus.close()
        gpu_claims.remove_templates(node)


@pytest.mark.parametrize("machine", MACHINES)
def test_every_pair_is_aligned_in_random_rounds(node: Node, tmp_path: Path, machine: str) -> None:
    run(node, machine, tmp_path)


WORKSTATION = """
name: workstation
summary: 3 H100 PCIe on two sockets, each with a NIC below the same host bridge
system:
  {vendor: Example, product: Workstation, board: Workstation, bios: "1.0", kernel: 6.8.0, cmdline: "",
   modules: {nvidia: 570.133.20}}
cpu: {model: Intel(R) Xeon(R) Gold 6430, sockets: 2, cores: 8, threads: 2, memory_gib: 126}
roots:
  "0000:00": {numa: 0, 1c.0 pch-root-port: {00.0 i210: {}}}
  "0000:15": {numa: 0, 01.0 spr-root-port: {00.0 h100-pcie: {}}, 03.0 spr-root-port: {00.0 cx7-eth: {}}}
  "0000:25": {numa: 0, 01.0 spr-root-port: {00.0 h100-pcie: {}}, 03.0 spr-root-port: {00.0 cx7-eth: {}}}
  "0000:95": {numa: 1, 01.0 spr-root-port: {00.0 h100-pcie: {}}, 03.0 spr-root-port: {00.0 cx7-eth: {}}}
default_route: enp1s0
"""


def test_the_rounds_also_run_on_a_machine_described_in_a_file(node: Node, tmp_path: Path) -> None:
    path = tmp_path / "workstation.yml"
    path.write_text(WORKSTATION)
    run(node, path, tmp_path)
