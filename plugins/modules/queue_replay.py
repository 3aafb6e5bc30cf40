#!/usr/bin/python

# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: queue_replay
short_description: Replay a stream of jobs in queues of Kueue, on nodes without machines
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Sends jobs to the queues of a cluster in their recorded order, but faster, and reports device-hours, waiting times
    by team and priority, and how many jobs had a GPU without a NIC on the same PCIe root.
  - Jobs are those of a CSV, or drawn from the distributions of a published trace. Each runs as long as the trace says,
    and from its start again if it was preempted.
  - Only for a cluster without machines. Each node has to have the label C(lanewise.dev/no-machine=true), and kwok runs
    their pods with the stages in C(playbooks/files/no-machine-stages). Any other cluster is refused.
  - The Jobs of all replays in the namespaces of the teams are deleted at the end.
  - If the cluster can no longer be watched, the replay ends with an error and without a result.
notes:
  - Runs on the controller, with the rights of the kubeconfig. It must allow listing Nodes and ResourceSlices, watching
    Pods and ResourceClaims, and creating and deleting Jobs.
extends_documentation_fragment:
  - lanewise.dra.cluster
  - lanewise.dra.attributes
  - lanewise.dra.attributes.actiongroup_lanewise
attributes:
  check_mode:
    support: full
    details:
      - Reads or draws the jobs, and sends none.
  diff_mode:
    support: none
  idempotent:
    support: none
    details:
      - Each run sends the jobs again.
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
        description: The number of GPUs; below 1 for a part of one.
        type: float
        required: true
      template:
        description: The ResourceClaimTemplate, in the namespace of each team.
        type: str
        required: true
      held:
        description: How many GPUs other jobs cannot have while it runs, by default O(forms[].gpus).
        type: float
  drivers:
    description:
      - The site's DRA drivers, as C(dra_claims_drivers) has them. They say which devices are GPUs, and which are NICs.
        Built-in drivers are known without it.
    type: dict
  csv:
    description:
      - The text of a CSV whose first line is C(submit_s,team,priority,gpus,seconds), times in seconds.
      - Without it jobs are drawn.
    type: str
  profile:
    description:
      - The distributions that jobs are drawn from. C(pai) are those of tasks of Alibaba PAI. C(training) has jobs of
        whole GPUs only, and more jobs with several GPUs.
    type: str
    choices: [pai, training]
    default: pai
  shares:
    description: For drawn jobs, the teams, and how much of the load each has.
    type: dict
  load:
    description: For drawn jobs, what all teams request together, as a fraction of all GPUs.
    type: float
    default: 0.9
  swing:
    description:
      - For drawn jobs, how much a team's arrivals rise and fall in O(hours), from 0 to 1. The teams are busy one after
        the other.
    type: float
    default: 0.9
  seed:
    description: For drawn jobs. The same number gives the same jobs.
    type: int
    default: 1
  gpus:
    description: How many GPUs the nodes have.
    type: float
    required: true
  hours:
    description: How many hours of the stream are replayed.
    type: float
    default: 12
  speed:
    description: How many seconds of the stream pass in one second.
    type: float
    default: 240
  priorities:
    description: Whether jobs have their priority. Otherwise all have the same.
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
  description: How many jobs there are.
  type: int
  returned: success
source:
  description: Where the jobs are from.
  type: str
  returned: success
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.lanewise.dra.plugins.module_utils.cluster_holds import run
from ansible_collections.lanewise.dra.plugins.module_utils.cluster_replay import Form, Replay, Unsuited
from ansible_collections.lanewise.dra.plugins.module_utils.dra.replay.pairs import kinds
from ansible_collections.lanewise.dra.plugins.module_utils.dra.replay.score import score
from ansible_collections.lanewise.dra.plugins.module_utils.dra.replay.trace import PROFILES, Job, Load, drawn, read_csv

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
    """The jobs within the hours, and where they are from. Raises ValueError."""
    for name, least, most in (("hours", 0, 10_000), ("speed", 0, 100_000), ("load", 0, 100), ("gpus", 0, 1e6)):
        if not least < params[name] <= most:
            raise ValueError(f"{name}: {params[name]:g} is not above {least} and at most {most:g}")
    if not 0 <= params["swing"] <= 1:
        raise ValueError(f"swing: {params['swing']:g} is not from 0 to 1")
    if params["csv"] is not None:
        found = read_csv(params["csv"].splitlines())
        return [one for one in found if one.submit < params["hours"] * 3600], "csv"
    shares = {str(team): float(share) for team, share in (params["shares"] or {}).items()}
    if not shares or min(shares.values()) < 0 or not sum(shares.values()):
        raise ValueError("shares: name the teams, each with its part of the load, such as {red: 1, blue: 1}")
    profile, hours = PROFILES[params["profile"]], params["hours"]
    shares = {team: share for team, share in shares.items() if share}
    load = Load(params["gpus"], hours, params["load"], shares, params["swing"], hours * 3600)
    return drawn(profile, load, params["seed"]), profile.source


def main() -> None:
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    params = module.params
    try:
        jobs, source = jobs_of(params)
        known = kinds(params["drivers"])
    except ValueError as error:
        module.fail_json(msg=f"Cannot replay: {error}")
    if module.check_mode:
        module.exit_json(changed=bool(jobs), jobs=len(jobs), source=source, result={})

    def work(api: kubernetes.client.ApiClient, version: str) -> dict[str, t.Any]:
        forms = {
            one["gpus"]: Form(one["template"], one["gpus"] if one["held"] is None else one["held"])
            for one in params["forms"]
        }
        window = params["hours"] * 3600
        try:
            runs = Replay(api, forms, params["speed"], params["priorities"], known).run(jobs, window)
        except Unsuited as error:
            module.fail_json(msg=f"Cannot replay: {error}")
        found = score(jobs, runs, params["gpus"], window)
        return {"changed": bool(jobs), "jobs": len(jobs), "source": source, "result": found}

    run(module, "the replay has ended", work)


if __name__ == "__main__":
    main()
