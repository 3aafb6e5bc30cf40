# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The topology of the hosts of a run, and of those that an earlier run stored in the site report."""

from __future__ import annotations

import json
import pathlib
import typing as t

from ansible.errors import AnsibleActionFail
from ansible_collections.lanewise.dra.plugins.module_utils.topology.model import Topology
from ansible_collections.lanewise.dra.plugins.plugin_utils.answers import fault
from ansible_collections.lanewise.dra.plugins.plugin_utils.report_forms import Unusable, check_facts, of_release

# variables that the role topology leaves with every host: the facts, and what the probe's task returned
_FACTS = "topology_facts"
_PROBE = "topology_probe"


def facts_of(variables: dict[str, t.Any], host: str) -> t.Any:
    """Return a host's facts as they are held, without a pass of the templar over hundreds of functions a node.

    Those of a host whose latest probe failed are what an earlier one left, before the host may have been changed: none.
    Raises AnsibleActionFail for those that a newer release has left in a cache.
    """
    probe = probe_of(variables, host)
    if probe.get("failed") or probe.get("unreachable"):
        return None
    hostvars = variables["hostvars"]
    raw = hostvars.raw_get(host)
    if not isinstance(raw, dict):
        return None
    found = raw.get(_FACTS)
    own = raw.get("ansible_facts") or {}
    if _FACTS in own:  # from a cache, or from whatever the node said: the role leaves a variable
        found = own[_FACTS] if found is None else found
        if fault(found, Topology):
            return None
    # A variable that refers to another one has to be templated after all.
    found = hostvars[host].get(_FACTS) if isinstance(found, str) else found
    if isinstance(found, dict):
        try:
            check_facts(found.get("schema_version"), host)
        except Unusable as error:
            raise AnsibleActionFail(str(error)) from None
    return found


def probe_of(variables: dict[str, t.Any], host: str) -> dict[str, t.Any]:
    """What the host's probe returned, where the play went on although it failed or could not connect."""
    raw = variables["hostvars"].raw_get(host)
    probe = raw.get(_PROBE) if isinstance(raw, dict) else None
    return probe if isinstance(probe, dict) else {}


def stored_facts(report: str) -> dict[str, dict[str, t.Any]]:
    """Return the facts of every node in a site report's folder, by host name.

    Raises OSError where the folder is no report, and ValueError where a node's file is damaged or of a newer
    release.
    """
    folder = pathlib.Path(report)
    (folder / "site.json").stat()
    found: dict[str, dict[str, t.Any]] = {}
    for path in sorted((folder / "nodes").glob("*.json")):
        try:
            node = of_release(json.loads(path.read_bytes()), path)
            check_facts(node["facts"].get("schema_version"), f"{node['host']} ({path})")
            found[node["host"]] = node["facts"]
        except Unusable:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{path} is not a stored node: {error!r}") from error
    return found
