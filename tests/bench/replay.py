# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run a stream of jobs twice: on whole devices with fixed quotas, and on shares of GPUs with borrowing and priorities.

Scheduler, Kueue and its webhooks are real, and time is compressed. Nodes have no machines: devices are those that the
drivers would publish. A job runs as long on a share of a GPU as on a whole one, which no real GPU promises.
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

SEED = 20261125
NODES, GPUS = 3, 8
TEAMS = ("blue", "red")
RESULTS = Path(__file__).resolve().parents[2] / "docs" / "bench" / "replay.json"
#: GiB of a GPU that a claim may have at most, as NVIDIA's driver would publish it for hgx-h100.
_GIB = 79


@dataclass(frozen=True)
class Stream:
    """Jobs of a profile for so many hours. `speed` is how many of their seconds pass in one real second. It also
    multiplies the time in which Kueue and the scheduler decide, so streams of many jobs have to be slow."""

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

Figures = t.Iterator[dict[str, t.Any]]


@dataclass(frozen=True)
class Setting:
    """One of the two settings: the drivers' options, queues, claim templates, and the template of each size."""

    name: str
    drivers: Object
    queues: Object
    templates: list[Object]
    forms: dict[float, SizeTemplate]


def _team(name: str, resources: Object, **more: t.Any) -> Object:
    return {"name": name, "namespaces": [name], "guaranteed": {key: one // 2 for key, one in resources.items()}, **more}


def _queues(counted: Object, has: Object, **more: t.Any) -> Object:
    resources = [counted, {"name": "nics", "classes": ["rdma"]}]
    return {"queues_resources": resources, "queues_teams": [_team(name, has, **more) for name in TEAMS]}


def whole_devices(sizes: t.Iterable[float]) -> Setting:
    """Whole devices without alignment. What a team does not use stays idle."""
    has = {"gpus": NODES * GPUS, "nics": NODES * GPUS}
    limits = {"borrow": dict.fromkeys(has, 0), "lend": dict.fromkeys(has, 0), "preempt": "never", "reclaim": "never"}
    queues = _queues({"name": "gpus", "classes": ["gpu"]}, has, **limits)
    templates, forms = [], {}
    for size in sizes:
        count = max(1, round(size))
        name = f"whole-{count}" if size >= 1 else "whole-alone"
        devices = [{"name": "gpu", "kind": "gpu", "count": count}]
        devices += [{"name": "nic", "kind": "rdma", "count": count}] if size >= 1 else []
        forms[size] = SizeTemplate(name, count)
        if all(one["name"] != name for one in templates):
            templates.append({"name": name, "namespaces": list(TEAMS), "devices": devices})
    return Setting("whole", DRIVERS, queues, templates, forms)


def shared_devices(sizes: t.Iterable[float]) -> Setting:
    """Shares of GPUs' memory and aligned pairs. Teams borrow idle devices and get them back; urgent jobs go first."""
    nvidia = {"version": "0.5.0", "engine": "consumable-shares", "consumable_shares": "memory"}
    has = {"gpu-memory": NODES * GPUS * _GIB * 2**30, "nics": NODES * GPUS}
    counted = {"name": "gpu-memory", "classes": ["gpu"], "capacity": "memory"}
    queues = {**_queues(counted, has), "queues_priorities": [{"name": "urgent", "value": 1000}]}
    templates, forms = [], {}
    for size in sizes:
        if size < 1:
            name, amount = f"part-{round(100 * size)}", f"{round(size * _GIB)}Gi"
            devices = [{"name": "gpu", "kind": "gpu", "share": {"memory": amount}}]
            templates.append({"name": name, "namespaces": list(TEAMS), "devices": devices})
        else:
            name = f"pairs-{round(size)}"
            devices = [{"name": "gpu", "kind": "gpu"}, {"name": "nic", "kind": "rdma"}]
            group = {"count": round(size), "align": "pcie_root", "devices": devices}
            templates.append({"name": name, "namespaces": list(TEAMS), "groups": [group]})
        forms[size] = SizeTemplate(name, size)
    return Setting("shared", {**DRIVERS, "gpu.nvidia.com": nvidia}, queues, templates, forms)


def run(plane: ControlPlane, queueing: Queueing, setting: Setting, stream: Stream) -> Object:
    """Run one stream in one setting, and return its score. Raises RuntimeError for a template that Kueue cannot use."""
    import kubernetes.config

    nodes = {f"{setting.name}-{number}": machine("hgx-h100") for number in range(NODES)}
    site = QueueSite(queueing, nodes, setting.drivers)
    try:
        made = site.compile(setting.queues, {"dra_claims_templates": setting.templates})
        unusable = [one.reason for one in made.templates if not one.use]
        if unusable or made.warnings:
            raise RuntimeError(f"{setting.name}: {unusable} {made.warnings}")
        queueing.configure(made.configuration)
        site.apply_queues(made)
        api = kubernetes.config.new_client_from_config(str(plane.write_kubeconfig("replay", "system:masters")))
        replay = Replay(api, setting.forms, stream.speed, priorities=setting.name == "shared")
        jobs, window = stream.jobs(), stream.hours * 3600
        runs = replay.run(jobs, window)
        plane.wait_for(lambda: not any(site.allocated(team) for team in TEAMS), "devices to be free", 300)
        return score(jobs, runs, NODES * GPUS, window)
    finally:
        site.close()


def replays(trees: Path) -> Figures:
    found: Object = {"gpus": NODES * GPUS, "seed": SEED, "loads": {}}
    try:
        with ControlPlane() as plane:
            queueing = Queueing(plane)
            for name, stream in STREAMS.items():
                sizes = [size for size, _weight in PROFILES[stream.profile].sizes]
                both = (whole_devices(sizes), shared_devices(sizes))
                results = {setting.name: run(plane, queueing, setting, stream) for setting in both}
                source = PROFILES[stream.profile].source
                found["loads"][name] = {"source": source, **asdict(stream), "results": results}
                yield _figure(name, stream, results, plane.version)
    except Missing as missing:
        print(f"replay left out: {missing}", file=sys.stderr)
        return
    RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _figure(name: str, stream: Stream, results: t.Mapping[str, Object], version: str) -> Object:
    ours, theirs = results["shared"], results["whole"]
    hours = {key: one["gpu_hours"] for key, one in results.items()}
    return {
        "name": f"replay_{name.replace(' ', '_').lower()}_useful_hours",
        "value": round(hours["shared"]["useful"] / hours["whole"]["useful"], 2),
        "unit": "ratio",
        "against": f"whole GPUs with fixed quotas and no priorities, {hours['whole']['useful']:.0f} of "
        f"{hours['whole']['there']:.0f} useful GPU-hours (ours {hours['shared']['useful']:.0f}, "
        f"{hours['shared']['lost']:.0f} lost to preemption); started {theirs['started']} and {ours['started']} of "
        f"{ours['jobs']} jobs; unaligned {theirs['unaligned']} of {theirs['with_nic']} and {ours['unaligned']} of "
        f"{ours['with_nic']}",
        "method": f"{stream.hours:g} hours of jobs at {stream.speed:g} times the speed on {NODES} nodes of {GPUS} GPUs "
        f"(hgx-h100) without machines, two teams with half of them each; Kueue 0.19.2, Kubernetes {version}; waiting "
        "times and sources are in docs/bench/replay.json",
    }
