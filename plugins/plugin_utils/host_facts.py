# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The topology of the hosts of a run, and of those that an earlier run stored in the site report."""

from __future__ import annotations

import base64
import json
import pathlib
import typing as t
import zlib

from ansible.errors import AnsibleActionFail
from ansible_collections.lanewise.dra.plugins.module_utils.topology.model import Topology
from ansible_collections.lanewise.dra.plugins.plugin_utils.answers import fault
from ansible_collections.lanewise.dra.plugins.plugin_utils.report_forms import Unusable, check_facts, of_release
from ansible_collections.lanewise.dra.plugins.plugin_utils.values import Json, Result, Variables

# variables that the role topology sets for every host: the facts, and the result of the probe
_FACTS = "topology_facts"
_PROBE = "topology_probe"
#: The size of packed facts, in bytes.
_LARGEST = 64 * 2**20


def facts_of(variables: Variables, host: str) -> Json | None:
    """A host's topology, or None. The templar is avoided, as a node has hundreds of PCI functions.

    If the latest probe failed, the facts are those of an earlier one, and the host may have changed since: None.
    Raises AnsibleActionFail for facts in a cache that a newer release wrote.
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
    found = raw.get(_FACTS)
    own = raw.get("ansible_facts") or {}
    if _FACTS in own:  # from a cache, or set by the node: the role sets a variable instead
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
    return None


def probe_of(variables: Variables, host: str) -> Result:
    """The result of the host's probe, if the play continued after it failed or could not connect; else empty."""
    raw = variables["hostvars"].raw_get(host)
    probe = raw.get(_PROBE) if isinstance(raw, dict) else None
    return probe if isinstance(probe, dict) else {}


def packed(facts: Json) -> str:
    """Facts as text of about a tenth of their size."""
    return base64.b85encode(zlib.compress(json.dumps(facts, separators=(",", ":")).encode(), 6)).decode()


def unpacked(text: object) -> Json | None:
    """The facts of `packed`; None for anything else, also for more than the longest answer of a node."""
    if not isinstance(text, str):
        return None
    try:
        found = json.loads(zlib.decompressobj().decompress(base64.b85decode(text), _LARGEST))
    except (ValueError, zlib.error, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def needs_no_change(probe: Result) -> bool:
    """Whether a probe has made the complete plan of its host, and the host needs no changes."""
    plan = probe.get("plan")
    return isinstance(plan, dict) and plan.get("changes") == [] and probe.get("plan_complete") is True


def stored_facts(report: str) -> t.Iterator[tuple[str, Json]]:
    """Each node in a site report's folder: its host name and its facts, which take some 0.35 MiB as Python objects.

    Raises OSError where the folder is not a report, and ValueError where a node's file is damaged or of a newer
    release.
    """
    folder = pathlib.Path(report)
    (folder / "site.json").stat()
    for path in sorted((folder / "nodes").glob("*.json")):
        try:
            node = of_release(json.loads(path.read_bytes()), path)
            check_facts(node["facts"].get("schema_version"), f"{node['host']} ({path})")
            found = node["host"], node["facts"]
        except Unusable:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{path} is not a stored node: {error!r}") from error
        yield found
