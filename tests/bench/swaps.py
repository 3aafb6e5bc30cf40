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

from tests.bench.figures import Figures

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


class _Bench:
    """A node of eight pairs. All are in use by pods of the low tier, and as many pods of the high tier wait."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane = plane
        self.queueing = Queueing(plane)  # used because it runs pods on nodes without a machine; no job uses Kueue
        self.site = QueueSite(self.queueing, {NODE: machine("hgx-h100")})
        for item in compile_site(_CLAIMS, t.cast(t.Any, self.site.nodes)).objects:
            if item["kind"] in ("DeviceClass", "ResourceClaimTemplate"):
                self.site.apply(item)
        self.playbooks = Playbooks(plane, folder)
        self.pods_path = f"/api/v1/namespaces/{NAMESPACE}/pods"

    def _create_pods(self, tier: str) -> None:
        for number in range(COUNT):
            pod = {"metadata": {"name": f"{tier}-{number}"}, "spec": pod_template(f"pair-{tier}")["spec"]}
            self.plane.expect("POST", self.pods_path, pod)

    def _count_running(self, tier: str) -> int:
        pods = self.queueing.pods(NAMESPACE)
        names = [pod["metadata"]["name"] for pod in pods if pod["status"].get("phase") == "Running"]
        return sum(name.startswith(tier) for name in names)

    def _fill(self) -> None:
        self._create_pods("batch")
        self.plane.wait_for(lambda: self._count_running("batch") == COUNT, "pods of the low tier", 120)
        self._create_pods("gold")
        time.sleep(2)  # until the scheduler has tried them and its first backoff is over

    def _wait_for_gold(self, start: float, playbook: subprocess.Popen[str] | None = None) -> float:
        """Wait until all pods of the high tier run. Returns the seconds since `start`."""
        while self._count_running("gold") < COUNT:
            if playbook and playbook.poll():
                raise RuntimeError(playbook.communicate()[0])
            if time.perf_counter() - start > 120:
                raise RuntimeError(f"{self._count_running('gold')} pods of the high tier run after 120 s")
            time.sleep(0.02)
        return time.perf_counter() - start

    def _clear(self) -> None:
        self.plane.expect("DELETE", f"{self.pods_path}?gracePeriodSeconds=0")
        self.plane.wait_for(
            lambda: not self.queueing.pods(NAMESPACE) and not self.site.allocated(NAMESPACE), "devices to be free", 120
        )

    def swap_by_playbook(self) -> tuple[float, float]:
        """Seconds from the start of the playbook until all pods of the high tier run, and until the playbook ends."""
        self._fill()
        start = time.perf_counter()
        playbook = self.playbooks.start("swap", **_SWAP)
        pods_seconds = self._wait_for_gold(start, playbook)
        output = playbook.communicate()[0]
        playbook_seconds = time.perf_counter() - start
        if playbook.returncode:
            raise RuntimeError(output)
        self.playbooks.run("swap", **_TIER, swap_state="returned")
        self._clear()
        return pods_seconds, playbook_seconds

    def swap_by_rules(self) -> float:
        """Seconds until all pods of the high tier run if only the taint rules that evict the others are created."""
        self._fill()
        claims = self.plane.expect("GET", f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaims")["items"]
        allocations = [claim["status"]["allocation"] for claim in claims if claim.get("status", {}).get("allocation")]
        results = [result for allocation in allocations for result in allocation["devices"]["results"]]
        devices = [(result["driver"], result["pool"], result["device"]) for result in results]
        hold = Hold("gold", "bench", "measured", datetime.now(timezone.utc), tuple(devices))
        rules = [swap.rule(hold, device, swap.EVICT, _API) for device in devices]
        start = time.perf_counter()
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda rule: self.plane.expect("POST", _RULES, rule), rules))
        seconds = self._wait_for_gold(start)
        self.plane.expect("DELETE", _RULES)
        self._clear()
        return seconds


def swaps(trees: Path) -> Figures:
    pods_times, playbook_times, rules_times = [], [], []
    try:
        with ControlPlane() as plane, tempfile.TemporaryDirectory() as folder:
            bench = _Bench(plane, Path(folder))
            for turn in range(ROUNDS + 1):
                (pods_seconds, playbook_seconds), rules_seconds = bench.swap_by_playbook(), bench.swap_by_rules()
                if turn:  # the first turn is a warm-up
                    pods_times.append(pods_seconds)
                    playbook_times.append(playbook_seconds)
                    rules_times.append(rules_seconds)
            version = plane.version
    except Missing as missing:
        print(f"swap_8_gpus_p50_s left out: {missing}", file=sys.stderr)
        return
    median, rules_median = statistics.median(pods_times), statistics.median(rules_times)
    yield {
        "name": "swap_8_gpus_p50_s",
        "value": round(median, 2),
        "unit": "s",
        "against": f"rules that end the same pods, made by hand without plan, count and hold, "
        f"{rules_median:.2f} s (ratio {median / rules_median:.1f})",
        "method": f"from the start of ansible-playbook lanewise.dra.swap until {COUNT} waiting pods of the high tier "
        f"run on {COUNT} aligned pairs of a GPU and a NIC; the playbook ends after "
        f"{statistics.median(playbook_times):.2f} s; pods of the low tier have no grace period; median of {ROUNDS} "
        f"rounds in turns, {min(pods_times):.2f} to {max(pods_times):.2f} s; "
        f"Kubernetes {version}; nothing prepares the devices, as the node has no machine",
    }
