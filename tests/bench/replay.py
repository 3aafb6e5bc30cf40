# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run a stream of jobs twice: on whole devices with fixed quotas, and on shares of GPUs with borrowing and priorities.

Scheduler, Kueue and its webhooks are real, and time is compressed. Nodes have no machines: devices are those that the
drivers would publish. A job takes as long on a share of a GPU as on a whole GPU, which is not so on real GPUs.
"""

from __future__ import annotations

import json
import sys
import typing as t
from dataclasses import asdict, dataclass
from pathlib import Path

from ansible_collections.lanewise.dra.plugins.module_utils.cluster_replay import Replay, SizeTemplate
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.replay.score import score
from ansible_collections.lanewise.dra.plugins.module_utils.dra.replay.trace import PROFILES, Job, Load, draw_jobs
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.cluster.queue_site import DRIVERS, QueueSite, machine
from ansible_collections.lanewise.dra.tests.cluster.queueing import Queueing
from environment import Missing  # importing tests.bench.__main__ adds tools/ to sys.path

from tests.bench.figures import Figures

SEED = 20261125
NODES, GPUS = 3, 8
TEAMS = ("blue", "red")
RESULTS = Path(__file__).resolve().parents[2] / "docs" / "bench" / "replay.json"
#: GiB of a GPU that a claim may have at most, as NVIDIA's driver would publish it for hgx-h100.
_GPU_GIB = 79


@dataclass(frozen=True)
class Stream:
    """Jobs of a profile for some hours; `load` and `swing` are as in trace.Load.

    `speed` is how many seconds of the jobs pass in one real second. It also multiplies the time in which Kueue and the
    scheduler decide, so streams with many jobs need a low speed.
    """

    profile: str
    load: float
    hours: float
    speed: float
    swing: float = 0.0

    def jobs(self) -> list[Job]:
        shares = dict.fromkeys(TEAMS, 1.0)
        load = Load(NODES * GPUS, self.hours, self.load, shares, self.swing, self.hours * 3600)
        return draw_jobs(PROFILES[self.profile], load, SEED)


STREAMS = {
    "busy in turns": Stream("pai", 0.9, 4.0, 60.0, 0.9),
    "both busy": Stream("pai", 1.3, 8.0, 240.0),
    "whole GPUs only": Stream("training", 1.0, 8.0, 240.0),
}


@dataclass(frozen=True)
class Setting:
    """How jobs get devices: the drivers' options, queues, claim templates, and the template of each size of job."""

    name: str
    drivers: Object
    queues: Object
    templates: list[Object]
    size_templates: dict[float, SizeTemplate]


def _team(name: str, totals: Object, **options: t.Any) -> Object:
    """A team that is guaranteed half of all resources."""
    guaranteed = {resource: total // 2 for resource, total in totals.items()}
    return {"name": name, "namespaces": [name], "guaranteed": guaranteed, **options}


def _queues(gpu_resource: Object, totals: Object, **options: t.Any) -> Object:
    resources = [gpu_resource, {"name": "nics", "classes": ["rdma"]}]
    return {"queues_resources": resources, "queues_teams": [_team(name, totals, **options) for name in TEAMS]}


def whole_devices(sizes: t.Iterable[float]) -> Setting:
    """Whole devices without alignment. Devices that a team does not use stay idle."""
    totals = {"gpus": NODES * GPUS, "nics": NODES * GPUS}
    no_sharing = {
        "borrow": dict.fromkeys(totals, 0),
        "lend": dict.fromkeys(totals, 0),
        "preempt": "never",
        "reclaim": "never",
    }
    queues = _queues({"name": "gpus", "classes": ["gpu"]}, totals, **no_sharing)
    templates, size_templates = [], {}
    for size in sizes:
        count = max(1, round(size))
        name = f"whole-{count}" if size >= 1 else "whole-alone"
        devices = [{"name": "gpu", "kind": "gpu", "count": count}]
        devices += [{"name": "nic", "kind": "rdma", "count": count}] if size >= 1 else []
        size_templates[size] = SizeTemplate(name, count)
        if all(template["name"] != name for template in templates):
            templates.append({"name": name, "namespaces": list(TEAMS), "devices": devices})
    return Setting("whole", DRIVERS, queues, templates, size_templates)


def shared_devices(sizes: t.Iterable[float]) -> Setting:
    """Shares of GPU memory, and aligned pairs. Teams lend each other idle devices; urgent jobs have priority."""
    nvidia = {"version": "0.5.0", "engine": "consumable-shares", "consumable_shares": "memory"}
    totals = {"gpu-memory": NODES * GPUS * _GPU_GIB * 2**30, "nics": NODES * GPUS}
    gpu_memory = {"name": "gpu-memory", "classes": ["gpu"], "capacity": "memory"}
    queues = {**_queues(gpu_memory, totals), "queues_priorities": [{"name": "urgent", "value": 1000}]}
    templates, size_templates = [], {}
    for size in sizes:
        if size < 1:
            name, amount = f"part-{round(100 * size)}", f"{round(size * _GPU_GIB)}Gi"
            devices = [{"name": "gpu", "kind": "gpu", "share": {"memory": amount}}]
            templates.append({"name": name, "namespaces": list(TEAMS), "devices": devices})
        else:
            name = f"pairs-{round(size)}"
            devices = [{"name": "gpu", "kind": "gpu"}, {"name": "nic", "kind": "rdma"}]
            group = {"count": round(size), "align": "pcie_root", "devices": devices}
            templates.append({"name": name, "namespaces": list(TEAMS), "groups": [group]})
        size_templates[size] = SizeTemplate(name, size)
    return Setting("shared", {**DRIVERS, "gpu.nvidia.com": nvidia}, queues, templates, size_templates)


def run(plane: ControlPlane, queueing: Queueing, setting: Setting, stream: Stream) -> Object:
    """Run one stream in one setting, and return its score. Raises RuntimeError for a template that Kueue cannot use."""
    import kubernetes.config

    nodes = {f"{setting.name}-{number}": machine("hgx-h100") for number in range(NODES)}
    site = QueueSite(queueing, nodes, setting.drivers)
    try:
        compiled = site.compile(setting.queues, {"dra_claims_templates": setting.templates})
        unusable = [template.reason for template in compiled.templates if not template.name_in_queues]
        if unusable or compiled.warnings:
            raise RuntimeError(f"{setting.name}: {unusable} {compiled.warnings}")
        queueing.configure(compiled.configuration)
        site.apply_queues(compiled)
        api = kubernetes.config.new_client_from_config(str(plane.write_kubeconfig("replay", "system:masters")))
        replay = Replay(api, setting.size_templates, stream.speed, priorities=setting.name == "shared")
        jobs, window = stream.jobs(), stream.hours * 3600
        runs = replay.run(jobs, window)
        plane.wait_for(lambda: not any(site.allocated(team) for team in TEAMS), "devices to be free", 300)
        return score(jobs, runs, NODES * GPUS, window)
    finally:
        site.close()


def replays(trees: Path) -> Figures:
    report: Object = {"gpus": NODES * GPUS, "seed": SEED, "loads": {}}
    try:
        with ControlPlane() as plane:
            queueing = Queueing(plane)
            for name, stream in STREAMS.items():
                sizes = [size for size, _weight in PROFILES[stream.profile].sizes]
                settings = (whole_devices(sizes), shared_devices(sizes))
                results = {setting.name: run(plane, queueing, setting, stream) for setting in settings}
                source = PROFILES[stream.profile].source
                report["loads"][name] = {"source": source, **asdict(stream), "results": results}
                yield _figure(name, stream, results, plane.version)
    except Missing as missing:
        print(f"replay left out: {missing}", file=sys.stderr)
        return
    RESULTS.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def _figure(name: str, stream: Stream, results: t.Mapping[str, Object], version: str) -> Object:
    shared, whole = results["shared"], results["whole"]
    shared_hours, whole_hours = shared["gpu_hours"], whole["gpu_hours"]
    return {
        "name": f"replay_{name.replace(' ', '_').lower()}_useful_hours",
        "value": round(shared_hours["useful"] / whole_hours["useful"], 2),
        "unit": "ratio",
        "against": f"whole GPUs with fixed quotas and no priorities, {whole_hours['useful']:.0f} of "
        f"{whole_hours['there']:.0f} useful GPU-hours (ours {shared_hours['useful']:.0f}, "
        f"{shared_hours['lost']:.0f} lost to preemption); started {whole['started']} and {shared['started']} of "
        f"{shared['jobs']} jobs; unaligned {whole['unaligned']} of {whole['with_nic']} and {shared['unaligned']} of "
        f"{shared['with_nic']}",
        "method": f"{stream.hours:g} hours of jobs at {stream.speed:g} times the speed on {NODES} nodes of {GPUS} GPUs "
        f"(hgx-h100) without machines, two teams with half of them each; Kueue 0.19.2, Kubernetes {version}; waiting "
        "times and sources are in docs/bench/replay.json",
    }
