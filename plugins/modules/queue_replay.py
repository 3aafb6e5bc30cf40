#!/usr/bin/python

# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: queue_replay
short_description: Replay a stream of jobs in queues of Kueue, on simulated nodes
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Submits jobs to the queues of a cluster in their recorded order, but faster, and reports device-hours, waiting times
    by team and priority, and how many jobs had a GPU without a NIC of its own on the same PCIe root.
  - Jobs are those of a CSV, or drawn from the distributions of a published trace. Each runs as long as in the trace,
    and starts again from the beginning if it was preempted.
  - Only for a cluster of simulated nodes without machines. Each node must have the label
    C(lanewise.dev/no-machine=true), and kwok runs the pods with the stages in C(playbooks/files/no-machine-stages). Any
    other cluster is refused.
  - At the end, all Jobs of replays in the namespaces of the teams are deleted, also those of other replays.
  - If the cluster can no longer be watched, the replay ends with an error and without a result.
notes:
  - Runs on the controller, with the rights of the kubeconfig. It must allow listing Nodes and ResourceSlices, watching
    Pods and ResourceClaims, and creating Jobs and deleting them as a collection (C(deletecollection)).
extends_documentation_fragment:
  - lanewise.dra.cluster
  - lanewise.dra.attributes
  - lanewise.dra.attributes.actiongroup_lanewise
attributes:
  check_mode:
    support: full
    details:
      - Reads or generates the jobs, and submits none.
  diff_mode:
    support: none
  idempotent:
    support: none
    details:
      - Each run submits the jobs again.
options:
  forms:
    description:
      - How jobs request devices, for each number of GPUs that a job of the stream can use. Each job is a pod with one
        claim.
      - A team's jobs go to the namespace and the LocalQueue of its name.
    type: list
    elements: dict
    required: true
    suboptions:
      gpus:
        description: The number of GPUs, below 1 for a part of a GPU.
        type: float
        required: true
      template:
        description: The ResourceClaimTemplate, in the namespace of each team.
        type: str
        required: true
      held:
        description: How many GPUs are unavailable to other jobs while the job runs, by default O(forms[].gpus).
        type: float
  drivers:
    description:
      - The site's DRA drivers, as C(dra_claims_drivers) has them. They determine which devices are GPUs, and which are
        NICs. Built-in drivers need no entry.
    type: dict
  csv:
    description:
      - The text of a CSV whose first line is C(submit_s,team,priority,gpus,seconds). Times are in seconds.
      - Without it, jobs are drawn.
    type: str
  profile:
    description:
      - The distributions that jobs are drawn from. C(pai) are those of tasks of Alibaba PAI. C(training) has jobs of
        whole GPUs only, and more jobs with several GPUs.
    type: str
    choices: [pai, training]
    default: pai
  shares:
    description: For drawn jobs, the teams, each with its part of the load.
    type: dict
  load:
    description: For drawn jobs, the total demand of all teams, as a fraction of all GPUs.
    type: float
    default: 0.9
  swing:
    description:
      - For drawn jobs, how much the rate of a team's arrivals rises and falls, from 0 to 1, in one cycle over O(hours).
        The teams are busy one after the other.
    type: float
    default: 0.9
  seed:
    description: For drawn jobs, the seed of the random numbers. The same seed gives the same jobs.
    type: int
    default: 1
  gpus:
    description: The number of GPUs of all nodes.
    type: float
    required: true
  hours:
    description: The number of hours of the stream to replay.
    type: float
    default: 12
  speed:
    description: The number of seconds of the stream per second of the replay.
    type: float
    default: 240
  priorities:
    description: Whether jobs keep their priority. Otherwise all have the same priority.
    type: bool
    default: true
"""

EXAMPLES = r"""
- name: Replay the site's own jobs
  lanewise.dra.queue_replay:
    kubeconfig: /etc/site/test-cluster
    csv: "{{ lookup('ansible.builtin.file', 'jobs.csv') }}"
    gpus: 24
    forms:
      - {gpus: 0.5, template: half}
      - {gpus: 1, template: pair}
      - {gpus: 8, template: eight-pairs}
"""

RETURN = r"""
result:
  description: GPU-hours, waiting times by team and priority, jobs without alignment, and a curve over time.
  type: dict
  returned: success
jobs:
  description: The number of jobs.
  type: int
  returned: success
source:
  description: The source of the jobs.
  type: str
  returned: success
"""

import math
import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.lanewise.dra.plugins.module_utils.cluster_holds import run
from ansible_collections.lanewise.dra.plugins.module_utils.cluster_replay import Replay, SizeTemplate, UnsuitableCluster
from ansible_collections.lanewise.dra.plugins.module_utils.dra.replay.pairs import kinds
from ansible_collections.lanewise.dra.plugins.module_utils.dra.replay.score import score
from ansible_collections.lanewise.dra.plugins.module_utils.dra.replay.trace import (
    MAX_GPUS,
    PROFILES,
    Job,
    Load,
    draw_jobs,
    read_csv,
)

if t.TYPE_CHECKING:
    import kubernetes

SPEC = {
    "forms": {
        "type": "list",
        "elements": "dict",
        "required": True,
        "options": {
            "gpus": {"type": "float", "required": True},
            "template": {"type": "str", "required": True},
            "held": {"type": "float"},
        },
    },
    "drivers": {"type": "dict"},
    "csv": {"type": "str"},
    "profile": {"type": "str", "choices": ["pai", "training"], "default": "pai"},
    "shares": {"type": "dict"},
    "load": {"type": "float", "default": 0.9},
    "swing": {"type": "float", "default": 0.9},
    "seed": {"type": "int", "default": 1},
    "gpus": {"type": "float", "required": True},
    "hours": {"type": "float", "default": 12},
    "speed": {"type": "float", "default": 240},
    "priorities": {"type": "bool", "default": True},
    "kubeconfig": {"type": "path"},
    "context": {"type": "str"},
}


def jobs_of(params: t.Mapping[str, t.Any]) -> tuple[list[Job], str]:
    """The jobs within `hours`, and their source. Raises ValueError."""
    for name, minimum, maximum in (("hours", 0, 10_000), ("speed", 0, 100_000), ("load", 0, 100), ("gpus", 0, 1e6)):
        if not minimum < params[name] <= maximum:
            raise ValueError(f"{name}: {params[name]:g} must be above {minimum} and at most {maximum:.0f}")
    for index, form in enumerate(params["forms"]):
        for name, value in (("gpus", form["gpus"]), ("held", form["held"])):
            if value is not None and not 0 < value <= MAX_GPUS:
                raise ValueError(f"forms[{index}].{name}: {value:g} must be above 0 and at most {MAX_GPUS}")
    if not 0 <= params["swing"] <= 1:
        raise ValueError(f"swing: {params['swing']:g} must be from 0 to 1")
    if params["csv"] is not None:
        jobs = read_csv(params["csv"].splitlines())
        return [job for job in jobs if job.submit < params["hours"] * 3600], "csv"
    shares = {team: share for team, share in shares_of(params["shares"] or {}).items() if share}
    if not shares:
        raise ValueError("shares: name the teams, each with its part of the load, such as {red: 1, blue: 1}")
    profile, hours = PROFILES[params["profile"]], params["hours"]
    load = Load(params["gpus"], hours, params["load"], shares, params["swing"], hours * 3600)
    return draw_jobs(profile, load, params["seed"]), profile.source


def shares_of(option: t.Mapping[t.Any, t.Any]) -> dict[str, float]:
    """The part of the load of each team. Raises ValueError."""
    shares = {}
    for team, text in option.items():
        try:
            share = float(text)
        except (TypeError, ValueError, OverflowError):
            share = math.nan
        if not 0 <= share < math.inf:
            raise ValueError(f"shares.{team}: must be a finite number, 0 or more, not {str(text)[:64]!r}")
        shares[str(team)] = share
    return shares


def main() -> None:
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    params = module.params
    try:
        jobs, source = jobs_of(params)
        device_kinds = kinds(params["drivers"])
    except ValueError as error:
        module.fail_json(msg=f"Cannot replay: {error}")
    if module.check_mode:
        module.exit_json(changed=bool(jobs), jobs=len(jobs), source=source, result={})

    def work(api: kubernetes.client.ApiClient, version: str) -> dict[str, t.Any]:
        templates = {
            form["gpus"]: SizeTemplate(form["template"], form["gpus"] if form["held"] is None else form["held"])
            for form in params["forms"]
        }
        window = params["hours"] * 3600  # seconds of the stream
        try:
            runs = Replay(api, templates, params["speed"], params["priorities"], device_kinds).run(jobs, window)
        except UnsuitableCluster as error:
            module.fail_json(msg=f"Cannot replay: {error}")
        scores = score(jobs, runs, params["gpus"], window)
        return {"changed": bool(jobs), "jobs": len(jobs), "source": source, "result": scores}

    run(module, "the replay failed", work)


if __name__ == "__main__":
    main()
