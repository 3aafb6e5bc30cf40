# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Device hours, debts between teams and gaps, computed from samples."""

from __future__ import annotations

import json
import random
from datetime import datetime, timedelta, timezone

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.queues import usage
from ansible_collections.lanewise.dra.plugins.module_utils.dra.queues.usage import Sample, Share

NOW = datetime(2026, 11, 25, tzinfo=timezone.utc)


def queue(name: str, quota: str, charged: str, loans: str = "", **more: str) -> Object:
    """The ClusterQueue of a team. `more` are limits of its quota."""
    resource = {"name": "x/gpus", "nominalQuota": quota, **more}
    reserved = {"name": "f", "resources": [{"name": "x/gpus", "total": charged}]}
    rule = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": [name]}
    return {
        "kind": "ClusterQueue",
        "metadata": {"name": name, "annotations": {"lanewise.dev/loans": loans}},
        "spec": {
            "namespaceSelector": {"matchExpressions": [rule]},
            "resourceGroups": [{"flavors": [{"name": "f", "resources": [resource]}]}],
        },
        "status": {"flavorsReservation": [reserved]},
    }


def claim(namespace: str, count: int) -> Object:
    results = [{"driver": "gpu.nvidia.com"}] * count
    return {
        "kind": "ResourceClaim",
        "metadata": {"name": "c", "namespace": namespace},
        "status": {"allocation": {"devices": {"results": results}}},
    }


@pytest.mark.parametrize(("limits", "lends"), [(("1", "2"), 3), (("1", None), None), ((None, "2"), None)])
def test_quotas_of_all_flavors_of_a_resource_are_added(
    limits: tuple[str | None, str | None], lends: float | None
) -> None:
    found = queue("red", "0", "4")
    amounts = [
        {"name": "x/gpus", "nominalQuota": "3", **({"lendingLimit": limit} if limit else {})} for limit in limits
    ]
    flavors = [{"name": f"f{number}", "resources": [entry]} for number, entry in enumerate(amounts)]
    found["spec"]["resourceGroups"] = [{"flavors": flavors}]
    assert usage.sample([found], NOW).shares == {"x/gpus": {"red": Share(6, 4, lends)}}


def test_a_sample_is_taken_from_objects_or_metrics() -> None:
    pool = {"kind": "Cohort", "metadata": {"name": "c"}, "spec": queue("", "2", "0")["spec"]}
    objects = [queue("red", "5", "1", "red lends blue"), queue("blue", "2", "4", "red lends blue", lendingLimit="1")]
    found = usage.sample([*objects, pool, claim("blue", 4), claim("elsewhere", 1)], NOW)
    assert found.shares == {"x/gpus": {"red": Share(5, 1), "blue": Share(2, 4, 1)}}
    assert found.pool == {"x/gpus": 2} and found.allocated == {"blue": {"gpu.nvidia.com": 4}}
    assert found.loans == ["red lends blue"] and found.source == "status"
    assert usage.sample_from_dict(json.loads(json.dumps(found.as_dict()))) == found
    measured = usage.sample(objects, NOW, {("blue", "x/gpus"): 3})
    assert measured.shares["x/gpus"]["blue"].charged == 3 and measured.shares["x/gpus"]["red"].charged == 0
    assert measured.source == "metrics"


@pytest.mark.parametrize(
    "damage",
    [
        {"shares": []},
        {"shares": {"x/gpus": {"red": {"quota": 1, "charged": 0, "lends": "all"}}}},
        {"allocated": {"red": {"gpu.nvidia.com": "many"}}},
        {"allocated": {"red": None}},
        {"loans": None},
        {"pool": {"x/gpus": None}},
        {"pool": {"x/gpus": 10**400}},
        {"allocated": {"red": {"gpu.nvidia.com": float("inf")}}},
    ],
)
def test_a_damaged_sample_is_an_error(damage: Object) -> None:
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        usage.sample_from_dict({**sample(0).as_dict(), **damage})


def sample(minutes: float, **charged: float) -> Sample:
    """A sample in which red and blue have four GPUs each, green has two and lends at most one, and the pool has one.
    `charged` has the GPUs that each team uses."""
    quota = {"red": (4, None), "blue": (4, None), "green": (2, 1)}
    shares = {name: Share(amount, charged.get(name, 0), lends) for name, (amount, lends) in quota.items()}
    return Sample(NOW + timedelta(minutes=minutes), {"gpus": shares}, {"gpus": 1})


def test_borrowed_devices_are_owed_to_the_teams_that_left_them_idle() -> None:
    found = usage.totals([sample(10, blue=6, red=2), sample(0, blue=4), sample(20)])
    assert found.known_hours == pytest.approx(1 / 3) and found.gaps == []
    assert found.hours["gpus"]["blue"] == pytest.approx(
        {"guaranteed": 4 / 3, "charged": 10 / 6, "borrowed": 2 / 6, "lent": 0}
    )
    # blue borrows two GPUs; red leaves two idle, green and the pool one each
    assert found.debts == {
        "gpus": {
            "red": {"blue": pytest.approx(1 / 6)},
            "green": {"blue": pytest.approx(0.5 / 6)},
            usage.POOL: {"blue": pytest.approx(0.5 / 6)},
        }
    }
    reported = usage.lines(found, ["red lends blue"])
    assert "  blue owes red 0.17" in reported and "loan: red lends blue" in reported


def test_gaps_between_samples_are_not_counted() -> None:
    found = usage.totals([sample(0, blue=4), sample(10, blue=4), sample(70, blue=4), sample(80)])
    assert found.known_hours == pytest.approx(1 / 3)
    assert found.hours["gpus"]["blue"]["charged"] == pytest.approx(4 / 3)
    assert usage.lines(found)[-1] == (
        "gap: nothing is known from 2026-11-25T00:10:00Z to 2026-11-25T01:10:00Z (1.00 h)"
    )
    assert usage.lines(usage.totals([])) == ["no sample yet"]


def test_debts_add_up_to_what_is_borrowed() -> None:
    """In random samples, in which no team borrows more than the others and the pool leave idle."""
    generator = random.Random(20261125)
    for _case in range(300):
        samples = []
        for number in range(generator.randint(2, 9)):
            red, green = generator.randint(0, 4), generator.randint(0, 2)
            max_blue = 4 + (4 - red) + min(1, 2 - green) + 1
            samples.append(sample(number * 5, red=red, green=green, blue=generator.randint(0, max_blue)))
        found = usage.totals(samples)
        hours_by_team = found.hours["gpus"]
        owed = sum(amount for debts in found.debts.get("gpus", {}).values() for amount in debts.values())
        assert owed == pytest.approx(sum(hours["borrowed"] for hours in hours_by_team.values()))
        assert all(value >= 0 for hours in hours_by_team.values() for value in hours.values())
