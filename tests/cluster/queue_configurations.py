# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Random queue configurations of a site, valid and invalid, and a simple rendering of them without any checks.

The rendering follows nothing but Kueue's documentation. So a test can ask Kueue about configurations that the compiler
refuses.
"""

from __future__ import annotations

import json
import random
import typing as t
from datetime import datetime, timedelta, timezone

from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object

NAMESPACES = tuple(f"team-{number}" for number in range(6))
CLASSES = ("gpu", "rdma", "nic-share")
#: Device classes that match no device.
SPARE = tuple(f"spare-{number}" for number in range(24))
CLAIMS: Object = {
    "dra_claims_classes": [{"name": name, "cel": ['device.driver == "none.example.com"']} for name in SPARE],
    "dra_claims_templates": [
        {
            "name": "pair",
            "namespaces": list(NAMESPACES),
            "align": ["pcie_root", "numa_node"],
            "devices": [{"name": "gpu", "kind": "gpu"}, {"name": "nic", "kind": "rdma"}],
        },
        {
            "name": "share",
            "namespaces": list(NAMESPACES),
            "devices": [{"name": "nic", "kind": "nic", "share": {"bandwidth": "10G"}}],
        },
    ],
}
ODD_NAMES = (
    *("Red", "a_b", "-x", "x-", "a b", "a/b", "a.b", "a..b", "x" * 63, "x" * 64, "x" * 253, "x" * 254, "ä", "0", "a:b"),
    *("a.b.c", "1.2", ".a", "a.", "A.b"),
)
ODD_RESOURCES = (
    *("GPUs", "g p", "a/b/c", "/a", "a/", "x" * 63, "x" * 64, "Foo.com/gpus", "foo.com/GPUs", "foo_bar.com/x", "a.b"),
    *("example.com/gpus", f"{'x' * 250}.io/gpus", "ä", "_a", "a_"),
)
ODD_WEIGHTS = (0, "0.5", "1n", "0.5n", "2n", -1, "1e3", 1000000, "0.000000001", "1000000000000")


class Configuration:
    """The variables `queues_*` of a site with these total amounts of gpus, nics and bandwidth (in G).

    `wrong` lists the values that were changed to unusual ones."""

    def __init__(self, seed: int, totals: t.Mapping[str, int]) -> None:
        self.rng = rng = random.Random(seed)
        self.totals = totals
        self.resources: list[Object] = [
            {"name": "gpus", "classes": ["gpu"]},
            {"name": "nics", "classes": ["rdma"]},
            {"name": "bandwidth", "classes": ["nic-share"], "capacity": "bandwidth"},
        ]
        if rng.random() < 0.3:
            self.resources.append({"name": "memory", "total": "4Ti"})
        self.teams = [self._team(number) for number in range(rng.randint(1, 4))]
        self.variables: Object = {
            "queues_resources": self.resources,
            "queues_bundles": {"pairs": {"gpus": 1, "nics": 1}},
            "queues_teams": self.teams,
        }
        if rng.random() < 0.4:
            self.variables["queues_pool"] = {"pairs": rng.randint(0, 3)}
        if rng.random() < 0.5:
            self.variables["queues_priorities"] = [
                {"name": f"level-{number}", "value": rng.choice([-(2**31), -5, 0, 7, 10**6, 2**31 - 1])}
                for number in range(rng.randint(1, 3))
            ]
        if len(self.teams) > 1 and rng.random() < 0.3:
            self.variables["queues_loans"] = [self._loan()]
        self.wrong = [self._corrupt() for _each in range(rng.choice([0, 0, 1, 1, 2]))]

    def _team(self, number: int) -> Object:
        rng = self.rng
        team: Object = {"name": f"team-{number}", "namespaces": [NAMESPACES[number]], "guaranteed": {}}
        guaranteed = team["guaranteed"]
        if rng.random() < 0.5:
            guaranteed["pairs"] = rng.randint(0, self.totals["gpus"] // 4)
        for name in ("gpus", "nics"):
            if rng.random() < 0.4:
                guaranteed[name] = rng.randint(0, self.totals[name] // 6)
        if rng.random() < 0.4:
            guaranteed["bandwidth"] = f"{rng.randint(1, self.totals['bandwidth'] // 4)}G"
        if len(self.resources) > 3 and rng.random() < 0.5:
            guaranteed["memory"] = rng.choice(["512Gi", "1Ti", "100G"])
        for key in ("borrow", "lend"):
            if rng.random() < 0.4:
                max_lend = guaranteed.get("gpus", 0) + guaranteed.get("pairs", 0)
                team[key] = {"gpus": rng.randint(0, max_lend if key == "lend" else 20)}
        if rng.random() < 0.3:
            team["weight"] = rng.choice([1, 2, 3, "0.5", 0])
        if rng.random() < 0.3:
            team["reclaim"] = rng.choice(["any", "lower_priority", "never"])
        if rng.random() < 0.3:
            team["preempt"] = rng.choice(["lower_priority", "newer", "never"])
        if rng.random() < 0.2:
            team["queue"] = f"jobs-{number}"
        return team

    def _loan(self) -> Object:
        until = datetime.now(timezone.utc) + timedelta(days=self.rng.choice([-3, 3, 30]))
        lender, borrower = self.rng.sample([team["name"] for team in self.teams], 2)
        devices = {"gpus": self.rng.randint(1, 3)}
        return {"from": lender, "to": borrower, "devices": devices, "until": until.strftime("%Y-%m-%dT%H:%M:%SZ")}

    def _corrupt(self) -> str:
        """Change one value to an unusual one, which may still be valid. Returns the name of the value."""
        rng, variables = self.rng, self.variables
        team = rng.choice(self.teams)
        kinds: dict[str, t.Callable[[], object]] = {
            "team name": lambda: self._rename(team),
            "queue name": lambda: team.update(queue=rng.choice(ODD_NAMES)),
            "cohort": lambda: variables.update(queues_cohort=rng.choice(ODD_NAMES)),
            "flavor": lambda: variables.update(queues_flavor=rng.choice(ODD_NAMES)),
            "resource name": lambda: self.resources.append(
                {"name": rng.choice(ODD_RESOURCES), "classes": [rng.choice(SPARE)]}
            ),
            "lend": lambda: team.update(lend={"gpus": rng.randint(0, 30)}),
            "borrow": lambda: team.update(borrow={"bandwidth": rng.choice(["0", "1", "1k", "100Ti", "3e10"])}),
            "weight": lambda: team.update(weight=rng.choice(ODD_WEIGHTS)),
            "priority": lambda: variables.update(queues_priorities=[self._odd_priority()]),
            "guarantee": lambda: team["guaranteed"].update(gpus=rng.randint(0, 3 * self.totals["gpus"])),
            "many resources": lambda: self.resources.extend(
                {"name": f"r{number}", "classes": [SPARE[number]]} for number in range(rng.randint(10, 16))
            ),
            "many classes": lambda: self.resources.append(
                {"name": "many", "classes": list(SPARE[: rng.randint(6, 11)])}
            ),
            "class twice": lambda: self.resources.append({"name": "again", "classes": ["gpu"]}),
            "selector": lambda: self.resources[2].update(selector=rng.choice(_SELECTORS)),
            "capacity": lambda: self.resources[2].update(
                capacity=rng.choice(["bandwidth", "Band width", "a/b/c"]), driver="lanewise.dev"
            ),
            "driver": lambda: self.resources[2].update(driver=rng.choice(["lanewise.dev", "Lanewise.dev", "a_b"])),
        }
        kind = rng.choice(sorted(kinds))
        kinds[kind]()
        return kind

    def _rename(self, team: Object) -> None:
        old, team["name"] = team["name"], self.rng.choice(ODD_NAMES)
        for loan in self.variables.get("queues_loans") or ():
            for side in ("from", "to"):
                loan[side] = team["name"] if loan[side] == old else loan[side]

    def _odd_priority(self) -> Object:
        rng = self.rng
        value = rng.choice([2**31, -(2**31) - 1, 0, 2**31 - 1, 10**12])
        description = "x" * rng.choice([1, 2048, 2049])
        return {"name": rng.choice(ODD_NAMES), "value": value, "description": description}


#: None of them uses device.allowMultipleAllocations: Kueue accepts the field, but treats it as false for every device.
_SELECTORS = (
    'device.driver == "lanewise.dev"',
    "true",
    "device.driver ==",
    "1",
    'device.attributes["lanewise.dev"].type == "share"',
    "device.nothing",
)


def unchecked_objects(variables: Object, site: str) -> list[Object]:
    """Kueue's objects for a site's variables, without checks. Loans are left out."""
    resources = [_full_name(resource["name"]) for resource in variables["queues_resources"]]
    flavor = variables.get("queues_flavor") or f"{site}-devices"
    cohort = variables.get("queues_cohort") or site
    objects = [
        _object("ResourceFlavor", flavor, {}),
        _object("Cohort", cohort, _groups(flavor, [_amounts(variables, variables.get("queues_pool") or {})])),
    ]
    for team in variables["queues_teams"]:
        quotas = [_amounts(variables, team.get(key) or {}) for key in ("guaranteed", "borrow", "lend")]
        spec = {"cohortName": cohort, **_groups(flavor, quotas, resources)}
        values = {"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["x"]}]}
        spec["namespaceSelector"] = values
        if "weight" in team:
            spec["fairSharing"] = {"weight": team["weight"]}
        objects.append(_object("ClusterQueue", team["name"], spec))
        for namespace in team["namespaces"]:
            local = _object("LocalQueue", team.get("queue") or team["name"], {"clusterQueue": team["name"]})
            local["metadata"]["namespace"] = namespace
            objects.append(local)
    for priority in variables.get("queues_priorities") or ():
        item = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass"}
        objects.append({**item, "metadata": {"name": priority["name"]}, "value": priority["value"]})
        objects[-1].update({"description": priority["description"]} if "description" in priority else {})
    return objects


def unchecked_configuration(variables: Object) -> Object:
    """The part of Kueue's configuration for a site's variables, without checks."""
    mappings = []
    for resource in variables["queues_resources"]:
        if "classes" not in resource:
            continue
        mapping: Object = {"name": _full_name(resource["name"]), "deviceClassNames": resource["classes"]}
        if "capacity" in resource:
            driver = resource.get("driver", "lanewise.dev")
            selector = resource.get("selector") or f"device.driver == {json.dumps(driver)}"
            source = {
                "name": resource["capacity"],
                "driver": driver,
                "deviceSelector": {"cel": {"expression": selector}},
            }
            mapping["sources"] = [{"capacity": source}]
        mappings.append(mapping)
    gates = {"KueueDRAIntegration": True, "KueueDRAIntegrationConsumableCapacity": True}
    return {"resources": {"deviceClassMappings": mappings}, "featureGates": gates}


def _full_name(name: str) -> str:
    return name if "/" in name or name in ("cpu", "memory") else f"lanewise.dev/{name}"


def _object(kind: str, name: str, spec: Object) -> Object:
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, "spec": spec}


def _amounts(variables: Object, amounts: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Amounts by Kueue's resource name. Bundles are replaced by their parts."""
    result: dict[str, t.Any] = {}
    for name, amount in amounts.items():
        for part, factor in variables["queues_bundles"].get(name, {name: None}).items():
            key = _full_name(part)
            result[key] = amount if factor is None else result.get(key, 0) + factor * amount
            if factor is None and name in ("gpus", "nics") and "pairs" in amounts:
                result[key] = amount + amounts["pairs"]
    return result


def _groups(flavor: str, quotas: list[dict[str, t.Any]], resources: t.Sequence[str] | None = None) -> Object:
    names = list(quotas[0]) if resources is None else list(resources)
    if not names:
        return {}
    entries = []
    for name in names:
        entry: Object = {"name": name, "nominalQuota": quotas[0].get(name, 0)}
        for key, amounts in zip(("borrowingLimit", "lendingLimit"), quotas[1:]):
            entry.update({key: amounts[name]} if name in amounts else {})
        entries.append(entry)
    return {"resourceGroups": [{"coveredResources": names, "flavors": [{"name": flavor, "resources": entries}]}]}
