# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The topology facts of a run's hosts, and of hosts in the site report of an earlier run."""

from __future__ import annotations

import base64
import json
import pathlib
import typing as t
import zlib

from ansible.errors import AnsibleActionFail
from ansible_collections.lanewise.dra.plugins.module_utils.topology.model import Topology
from ansible_collections.lanewise.dra.plugins.plugin_utils.answers import fault
from ansible_collections.lanewise.dra.plugins.plugin_utils.report_formats import (
    Unusable,
    check_facts_version,
    read_stored,
)
from ansible_collections.lanewise.dra.plugins.plugin_utils.values import Json, Result, Variables

# variables that the role topology sets for each host: the facts, and the result of the probe
_FACTS = "topology_facts"
_PROBE = "topology_probe"
#: The maximum size of unpacked facts, in bytes.
_MAX_SIZE = 64 * 2**20


def facts_of(variables: Variables, host: str) -> Json | None:
    """A host's topology facts; None if it has none, or if its latest probe failed, because older facts may be outdated.

    The facts are not templated, because that takes long for a node's hundreds of PCI functions. Raises
    AnsibleActionFail for facts in a cache that a newer release wrote.
    """
    probe = probe_of(variables, host)
    if probe.get("failed") or probe.get("unreachable"):
        return None
    if "packed" in probe:
        return unpacked(probe["packed"])
    hostvars = variables["hostvars"]
    raw = hostvars.raw_get(host)
    if not isinstance(raw, dict):
        return None
    facts = raw.get(_FACTS)
    gathered = raw.get("ansible_facts") or {}
    if _FACTS in gathered:  # from a cache, or set by the node: the role sets a variable instead
        facts = gathered[_FACTS] if facts is None else facts
        if fault(facts, Topology):
            return None
    # a variable that refers to another one must be templated
    facts = hostvars[host].get(_FACTS) if isinstance(facts, str) else facts
    if isinstance(facts, dict):
        try:
            check_facts_version(facts.get("schema_version"), host)
        except Unusable as error:
            raise AnsibleActionFail(str(error)) from None
        return facts
    return None


def probe_of(variables: Variables, host: str) -> Result:
    """The result of the host's latest probe; empty if there is none."""
    raw = variables["hostvars"].raw_get(host)
    probe = raw.get(_PROBE) if isinstance(raw, dict) else None
    return probe if isinstance(probe, dict) else {}


def packed(facts: Json) -> str:
    """Facts as text of about a tenth of their size."""
    return base64.b85encode(zlib.compress(json.dumps(facts, separators=(",", ":")).encode(), 6)).decode()


def unpacked(text: object) -> Json | None:
    """The facts in a text that `packed` returned; None for any other value, and for facts above the maximum size."""
    if not isinstance(text, str):
        return None
    try:
        facts = json.loads(zlib.decompressobj().decompress(base64.b85decode(text), _MAX_SIZE))
    except (ValueError, zlib.error, RecursionError):
        return None
    return facts if isinstance(facts, dict) else None


def needs_no_change(probe: Result) -> bool:
    """Whether a probe returned a complete plan of its host in which nothing changes."""
    plan = probe.get("plan")
    return isinstance(plan, dict) and plan.get("changes") == [] and probe.get("plan_complete") is True


def stored_facts(report: str) -> t.Iterator[tuple[str, Json]]:
    """The host name and facts of each node in a site report's folder. Facts take some 0.35 MiB as Python objects.

    Raises OSError if the folder is not a report, and ValueError if a node's file is damaged or of a newer release.
    """
    folder = pathlib.Path(report)
    (folder / "site.json").stat()
    for path in sorted((folder / "nodes").glob("*.json")):
        try:
            node = read_stored(json.loads(path.read_bytes()), path)
            check_facts_version(node["facts"].get("schema_version"), f"{node['host']} ({path})")
            host_and_facts = node["host"], node["facts"]
        except Unusable:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{path} is not a stored node: {error!r}") from error
        yield host_and_facts
