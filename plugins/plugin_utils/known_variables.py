# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The variables that this collection reads. A misspelt variable is an error, as it would have no effect.

Variables of roles come from their argument specifications; those of playbooks are listed here and in docs/rollout.md.
"""

from __future__ import annotations

import difflib
import fnmatch
import functools
import pathlib
import typing as t

import yaml
from ansible_collections.lanewise.dra.plugins.plugin_utils.values import Json, Spec

_ROLES = pathlib.Path(__file__).resolve().parents[2] / "roles"
#: A variable with one of these prefixes belongs to a role or is unknown.
PREFIXES = ("alignment_", "dra_claims_", "dra_driver_", "fabric_", "queues_", "topology_")
#: A site may have its own variables with these prefixes. Only a name that resembles a known variable is an error.
NEAR_PREFIXES = (
    *("addresses_", "claims_", "defragment_", "driver_", "plan_", "probe_", "queue_usage_", "queue_replay_"),
    *("remove_", "replace_nic_", "reserve_", "site_", "support_", "swap_", "switch_driver_", "verify_"),
)
#: The variable in which a site lists its own variables with one of these prefixes.
OWN = "site_own_variables"
#: Variables that only playbooks read.
PLAYBOOK_VARIABLES = (
    OWN,
    *("claims_hosts", "driver_hosts", "fabric_hosts", "probe_hosts", "site_hosts", "verify_hosts"),
    *("driver_become", "fabric_become", "site_become", "verify_become"),
    *("driver_serial", "fabric_serial", "site_serial"),
    *("driver_max_fail_percentage", "fabric_max_fail_percentage", "site_max_fail_percentage"),
    *("site_confirm", "site_verbs", "site_report_dest", "site_claims_dest", "support_dest", "remove_confirm"),
    *("replace_nic_slot", "replace_nic_address", "replace_nic_serial", "replace_nic_phase", "replace_nic_timeout"),
    *("plan_workloads", "plan_what_if", "plan_require", "plan_by", "plan_snapshot", "plan_feature_gates"),
    *("plan_kubeconfig", "plan_context", "plan_facts", "plan_prices", "plan_price_unit", "plan_dest", "plan_title"),
    *("plan_kueue_configuration", "plan_manifests"),
    *("reserve_name", "reserve_owner", "reserve_reason", "reserve_hours", "reserve_expires", "reserve_state"),
    *("reserve_workload", "reserve_count"),
    *("defragment_name", "defragment_owner", "defragment_reason", "defragment_hours", "defragment_workload"),
    *("defragment_count", "defragment_max_moves", "defragment_may_wait", "defragment_protect", "defragment_timeout"),
    *("defragment_budget_timeout", "defragment_settle_timeout"),
    *("swap_tier", "swap_owner", "swap_reason", "swap_hours", "swap_expires", "swap_state", "swap_devices"),
    *("swap_workload", "swap_count", "swap_share", "swap_ignore_budgets", "swap_timeout"),
    *("queue_usage_dest", "queue_usage_gap", "queue_usage_metrics_url", "queue_usage_metrics_token_file"),
    *("queue_usage_metrics_ca", "queue_usage_title"),
    *("queue_replay_kubeconfig", "queue_replay_context", "queue_replay_name", "queue_replay_dest", "queue_replay_csv"),
    *("queue_replay_profile", "queue_replay_shares", "queue_replay_load", "queue_replay_swing", "queue_replay_seed"),
    *("queue_replay_gpus", "queue_replay_hours", "queue_replay_speed", "queue_replay_forms"),
    "queue_replay_priorities",
    "addresses_dest",
    *("switch_driver_to", "switch_driver_drain", "switch_driver_timeout", "switch_driver_daemonset"),
    *("replace_nic_other_model", "replace_nic_other_changes", "replace_nic_same_card"),
)
#: Variables that plays set for hosts. They are known in a later play, too.
PLAY_VARIABLES = (
    *("site_parts", "site_begun", "site_claims_problem", "site_queues_problem", "site_drift", "site_checked"),
    *("site_plan", "site_problems", "site_batch_state", "site_holds", "site_state", "replace_nic_result"),
    *("topology_facts", "topology_probe"),  # which a site may also set for a node that it cannot probe
)
#: The minimum similarity, from 0 to 1, at which a name with one of NEAR_PREFIXES counts as misspelt.
_MIN_NEAR_SIMILARITY = 0.8
#: The minimum similarity, from 0 to 1, of a suggested name.
_MIN_SIMILARITY = 0.6


def _load(path: pathlib.Path) -> Json:
    content: Json = yaml.load(path.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return content


@functools.cache
def role_options() -> frozenset[str]:
    """The options of all entry points of all roles."""
    return frozenset(
        option
        for path in _ROLES.glob("*/meta/argument_specs.yml")
        for entry in _load(path)["argument_specs"].values()
        for option in entry.get("options") or {}
    )


@functools.cache
def options_of_role(role: str, entry: str) -> Spec:
    """The argument specification of an entry point of a role, without descriptions."""
    options: Spec = _load(_ROLES / role / "meta" / "argument_specs.yml")["argument_specs"][entry]["options"]
    return {
        name: {key: value for key, value in option.items() if key != "description"} for name, option in options.items()
    }


@functools.cache
def boards() -> tuple[str, ...]:
    """The boards that the role fabric knows."""
    return tuple(_load(_ROLES / "fabric" / "vars" / "main.yml")["__fabric_boards"])


def hint(name: str, known: t.Iterable[str], min_similarity: float = _MIN_SIMILARITY) -> str:
    """`did you mean x?` for the most similar known name; empty if no name is similar."""
    near = difflib.get_close_matches(name, sorted(known), 1, min_similarity)
    return f"did you mean {near[0]}?" if near else ""


def unknown_names(names: t.Iterable[str], own: t.Iterable[str] = ()) -> dict[str, str]:
    """The unknown names, each with a suggestion. `own` are names or shell patterns of the site's own variables."""
    known = role_options() | {*PLAYBOOK_VARIABLES, *PLAY_VARIABLES}
    patterns = list(own)
    unknown = {}
    for name in names:
        strict = name.startswith(PREFIXES)
        if name in known or not (strict or name.startswith(NEAR_PREFIXES)):
            continue
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            continue
        suggestion = hint(name, known, _MIN_SIMILARITY if strict else _MIN_NEAR_SIMILARITY)
        if strict or suggestion:
            unknown[name] = suggestion
    return unknown
