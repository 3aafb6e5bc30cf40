# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Measure how long it takes until pods of a high tier run on devices that pods of a low tier had."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
import typing as t
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path

from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import compile_site
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds import swap
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds.hold import Hold
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.cluster.holding import Playbooks
from ansible_collections.lanewise.dra.tests.cluster.queue_site import DRIVERS, QueueSite, machine
from ansible_collections.lanewise.dra.tests.cluster.queueing import Queueing, pod_template
from environment import Missing  # importing tests.bench.__main__ adds tools/ to sys.path

ROUNDS = 5
NAMESPACE, NODE, COUNT = "swap-bench", "pairs", 8
_API, _RULES = "resource.k8s.io/v1", "/apis/resource.k8s.io/v1/devicetaintrules"
_PAIR = [{"name": "gpu", "kind": "gpu"}, {"name": "nic", "kind": "rdma"}]
_CLAIMS = {
    "dra_claims_drivers": DRIVERS,
    "dra_claims_tiers": [{"name": "gold"}, {"name": "batch", "grace": 0}],
    "dra_claims_templates": [
        {"name": f"pair-{tier}", "namespace": NAMESPACE, "tier": tier, "align": "pcie_root", "devices": _PAIR}
        for tier in ("gold", "batch")
    ],
}
_TIER = {"swap_tier": "gold", "swap_owner": "bench"}
_SWAP = {
    **_TIER,
    "swap_reason": "measured",
    "swap_workload": {"name": "pair", "namespace": NAMESPACE, "templates": ["pair-gold"]},
    "swap_count": COUNT,
}

Figures = t.Iterator[dict[str, t.Any]]


class _Bench:
    """A node of eight pairs, all of them in use by pods of the low tier, and eight pods of the high tier that wait."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane = plane
        self.queueing = Queueing(plane)  # its pods run on nodes without a machine; Kueue itself does nothing here
        self.site = QueueSite(self.queueing, {NODE: machine("hgx-h100")})
        for item in compile_site(_CLAIMS, t.cast(t.Any, self.site.nodes)).objects:
            if item["kind"] in ("DeviceClass", "ResourceClaimTemplate"):
                self.site.apply(item)
        self.playbooks = Playbooks(plane, folder)
        self.pods_at = f"/api/v1/namespaces/{NAMESPACE}/pods"

    def _pods(self, tier: str) -> None:
        for number in range(COUNT):
            pod = {"metadata": {"name": f"{tier}-{number}"}, "spec": pod_template(f"pair-{tier}")["spec"]}
            self.plane.expect("POST", self.pods_at, pod)

    def _running(self, tier: str) -> int:
        pods = self.queueing.pods(NAMESPACE)
        names = [one["metadata"]["name"] for one in pods if one["status"].get("phase") == "Running"]
        return sum(name.startswith(tier) for name in names)

    def _fill(self) -> None:
        self._pods("batch")
        self.plane.wait_for(lambda: self._running("batch") == COUNT, "pods of the low tier", 120)
        self._pods("gold")
        time.sleep(2)  # until the scheduler has tried them and its first backoff is over

    def _seconds(self, start: float, playbook: subprocess.Popen[str] | None = None) -> float:
        while self._running("gold") < COUNT:
            if playbook and playbook.poll():
                raise RuntimeError(playbook.communicate()[0])
            if time.perf_counter() - start > 120:
                raise RuntimeError(f"{self._running('gold')} pods of the high tier run after 120 s")
            time.sleep(0.02)
        return time.perf_counter() - start

    def _clear(self) -> None:
        self.plane.expect("DELETE", f"{self.pods_at}?gracePeriodSeconds=0")
        self.plane.wait_for(
            lambda: not self.queueing.pods(NAMESPACE) and not self.site.allocated(NAMESPACE), "devices to be free", 120
        )

    def playbook(self) -> tuple[float, float]:
        """Seconds from the start of the playbook until all pods of the high tier run, and until the playbook ends."""
        self._fill()
        start = time.perf_counter()
        running = self.playbooks.start("swap", **_SWAP)
        took = self._seconds(start, running)
        output = running.communicate()[0]
        ended = time.perf_counter() - start
        if running.returncode:
            raise RuntimeError(output)
        self.playbooks.run("swap", **_TIER, swap_state="returned")
        self._clear()
        return took, ended

    def by_hand(self) -> float:
        """The same with rules that end the pods at once, without plan, count and hold."""
        self._fill()
        claims = self.plane.expect("GET", f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaims")["items"]
        given = [one["status"]["allocation"] for one in claims if one.get("status", {}).get("allocation")]
        devices = [(one["driver"], one["pool"], one["device"]) for each in given for one in each["devices"]["results"]]
        hold = Hold("gold", "bench", "measured", datetime.now(timezone.utc), tuple(devices))
        rules = [swap.rule(hold, device, swap.EVICT, _API) for device in devices]
        start = time.perf_counter()
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda one: self.plane.expect("POST", _RULES, one), rules))
        took = self._seconds(start)
        self.plane.expect("DELETE", _RULES)
        self._clear()
        return took


def swaps(trees: Path) -> Figures:
    ours, ends, floor = [], [], []
    try:
        with ControlPlane() as plane, tempfile.TemporaryDirectory() as folder:
            bench = _Bench(plane, Path(folder))
            for turn in range(ROUNDS + 1):
                measured, by_hand = bench.playbook(), bench.by_hand()
                if turn:  # the first one warms up
                    ours.append(measured[0])
                    ends.append(measured[1])
                    floor.append(by_hand)
            version = plane.version
    except Missing as missing:
        print(f"swap_8_gpus_p50_s left out: {missing}", file=sys.stderr)
        return
    middle = statistics.median(ours)
    yield {
        "name": "swap_8_gpus_p50_s",
        "value": round(middle, 2),
        "unit": "s",
        "against": f"rules that end the same pods, made by hand without plan, count and hold, "
        f"{statistics.median(floor):.2f} s (ratio {middle / statistics.median(floor):.1f})",
        "method": f"from the start of ansible-playbook lanewise.dra.swap until {COUNT} waiting pods of the high tier "
        f"run on {COUNT} aligned pairs of a GPU and a NIC; the playbook ends after {statistics.median(ends):.2f} s; "
        f"low-tier pods without grace; median of {ROUNDS} rounds in turns, {min(ours):.2f} to {max(ours):.2f} s; "
        f"Kubernetes {version}; nothing prepares the devices, as the node has no machine",
    }
