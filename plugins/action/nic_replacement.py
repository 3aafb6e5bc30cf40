# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Tell about a NIC that is replaced. The documentation is in plugins/modules/nic_replacement.py."""

from __future__ import annotations

import dataclasses
import datetime
import json
import pathlib
import typing as t

from ansible.errors import AnsibleActionFail
from ansible_collections.lanewise.dra.plugins.module_utils.topology.model import Topology
from ansible_collections.lanewise.dra.plugins.module_utils.topology.stored import Forms
from ansible_collections.lanewise.dra.plugins.plugin_utils import replacement
from ansible_collections.lanewise.dra.plugins.plugin_utils.controller_action import ControllerAction
from ansible_collections.lanewise.dra.plugins.plugin_utils.host_facts import facts_of
from ansible_collections.lanewise.dra.plugins.plugin_utils.report_forms import (
    FORMS,
    REPLACED,
    Unusable,
    check_facts,
    of_release,
)
from ansible_collections.lanewise.dra.plugins.plugin_utils.report_site import file_name

_SPEC: dict[str, dict[str, t.Any]] = {
    "tell": {"type": "str", "choices": ["before", "after", "done"], "required": True},
    "report": {"type": "path", "required": True},
    "slot": {"type": "str", "default": ""},
    "address": {"type": "str", "default": ""},
    "serial": {"type": "str", "default": ""},
    "users": {"type": "dict", "default": {}},
    "rules": {"type": "list", "elements": "dict", "default": []},
    "driver": {"type": "dict", "default": {}},
    "node": {"type": "str", "default": ""},
    "cluster": {"type": "dict", "default": {}},
    "other_model": {"type": "bool", "default": False},
    "other_changes": {"type": "bool", "default": False},
    "same_card": {"type": "bool", "default": False},
}
_SECTIONS = frozenset(field.name for field in dataclasses.fields(Topology))
#: States of a record: the card may be out, or the new one was found good.
_OUT, _DONE = "out", "done"


class ActionModule(ControllerAction):
    """Reads the host's facts and the folder of the report. Never connects to a target, and writes nothing."""

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result = super().run(tmp, task_vars)
        variables = task_vars or {}
        _unused, options = self.validate_argument_spec(argument_spec=_SPEC)
        host = variables["inventory_hostname"]
        facts = facts_of(variables, host)
        if not isinstance(facts, dict):
            raise AnsibleActionFail(f"the topology of {host} is not known: play the role lanewise.dra.topology first")
        lacking = sorted(_SECTIONS - facts.keys())
        if lacking:
            raise AnsibleActionFail(
                f"the facts of {host} lack {', '.join(lacking)}: probe all subsets (topology_subset)"
            )
        folder = pathlib.Path(self._loader.path_dwim(options["report"]))
        path = folder / "replaced" / f"{file_name(host)}.json"
        record = _read(path, REPLACED)
        stored = _read(folder / "nodes" / f"{file_name(host)}.json", FORMS).get("facts")
        told = _Telling(host, options, facts, _usable(stored, host), record)
        try:
            if options["tell"] == "before":
                found = told.before(variables["hostvars"].raw_get(host))
            else:
                found = told.after() if options["tell"] == "after" else told.done()
        except replacement.Unknown as error:
            found = {"problems": [str(error)], "summary": []}
        result.update(found, path=str(path), changed=False)
        return result


def _read(path: pathlib.Path, forms: Forms) -> dict[str, t.Any]:
    """A file of the report; empty where there is none. Raises AnsibleActionFail for a damaged one, and for that of a
    newer release."""
    try:
        return of_release(json.loads(path.read_bytes()), path, forms)
    except FileNotFoundError:
        return {}
    except Unusable as error:
        raise AnsibleActionFail(str(error)) from None
    except (OSError, ValueError, RecursionError) as error:
        raise AnsibleActionFail(f"cannot read {path}: {error}") from error


def _usable(stored: t.Any, host: str) -> dict[str, t.Any] | None:
    """The facts that the report has of a node. Raises AnsibleActionFail for those of a newer release."""
    if not isinstance(stored, dict):
        return None
    try:
        check_facts(stored.get("schema_version"), f"{host} (in the report)")
    except Unusable as error:
        raise AnsibleActionFail(str(error)) from None
    return stored


class _Telling:
    """One call: the node as it is, C(stored) as the site report has it, and the C(record) of the replacement."""

    def __init__(
        self,
        host: str,
        options: dict[str, t.Any],
        facts: dict[str, t.Any],
        stored: dict[str, t.Any] | None,
        record: dict[str, t.Any],
    ) -> None:
        self.host = host
        self.options = options
        self.facts = facts
        self.stored = stored
        self.record = record
        self.now = replacement.cards(facts)
        self.asked = {key: options[key] for key in ("slot", "address", "serial")}

    def before(self, variables: t.Any) -> dict[str, t.Any]:
        """Raises Unknown where no card, or more than one, is what was asked for."""
        known = replacement.cards(self.stored) if self.stored else []
        facts, lines, problems = self.facts, [], []
        record = self.record if self.record.get("state") == _OUT else {}
        try:
            card = replacement.find(self.now, **self.asked)
        except replacement.Unknown:
            if not any(_fits(one, self.asked) for one in known):
                raise
            card, facts = replacement.find(known, **self.asked), t.cast("dict[str, t.Any]", self.stored)
            lines.append("The node does not show it any more; this is what the site report has of it:")
        else:
            card = replacement.completed(card, replacement.there(known, card))
        if record and replacement.same(record["card"], card) is False:
            problems.append(
                f"{replacement.title(record['card'])} is being replaced since {record['time']}. End that first "
                "(replace_nic_phase=after)."
            )
        cluster, users = self.options["cluster"], self.options["users"]
        reasons = replacement.needed(card, users.get("management") or {}) if facts is self.facts else []
        problems += [
            f"this card carries the node's own traffic, so nothing can be done here without it: {reason} (give the "
            "node another way first, and move routes, sessions and storage there; or swap it by hand and play "
            "lanewise.dra.site)"
            for reason in reasons
        ]
        devices = replacement.published(card, self.options["node"], cluster) if cluster else []
        lines += replacement.card_lines(card, users.get("users") or {})
        written = variables if isinstance(variables, dict) else {}
        said = replacement.inventory_lines(card, facts, self.options["rules"], self.options["driver"], written)
        lines += ["in the inventory:", *(f"    {line}" for line in said)] if said else ["in the inventory: nothing"]
        if cluster:
            had = replacement.cluster_lines(devices, cluster["claims"])
            lines += ["in the cluster:", *(f"    {line}" for line in had)] if had else ["in the cluster: nothing"]
        else:
            lines.append("in the cluster: not looked at, as no kubeconfig is given")
        addresses = sorted({one["address"] for one in devices})
        if not record or facts is self.facts:
            record = {
                "state": _OUT,
                "host": self.host,
                "time": record.get("time") or _now(),
                "card": card,
                "facts": self.facts,
                "published": addresses or record.get("published") or [],
            }
        mine = replacement.owned(card)
        held = {key: who for key, who in (users.get("users") or {}).items() if key in mine}
        return {
            "summary": lines,
            "problems": problems,
            "card": card,
            "functions": sorted(mine),
            "in_use": [f"{address}: {held[address]}" for address in sorted(held)],
            "record": REPLACED.write(record),
            "published": addresses,
        }

    def _base(self) -> tuple[replacement.Card, dict[str, t.Any]]:
        """The card as it was, and the node of that time. Raises Unknown where nobody knows."""
        if self.record.get("state") == _OUT:
            card = self.record["card"]
            if any(self.asked.values()) and not _fits(card, self.asked):
                raise replacement.Unknown(f"the card that is being replaced is another one: {replacement.title(card)}")
            return card, self.record["facts"]
        if not self.stored:
            raise replacement.Unknown(
                "neither this playbook (replace_nic_phase=before) nor the site report has seen the node before the "
                "swap, so there is nothing to compare the new card with: play lanewise.dra.site for it"
            )
        return replacement.find(replacement.cards(self.stored), **self.asked), self.stored

    def _finished(self) -> replacement.Card | None:
        """The card as it is now, where an earlier run found it good."""
        if self.record.get("state") != _DONE:
            return None
        known = self.record["card"]
        new = replacement.there(self.now, known)
        meant = not any(self.asked.values()) or _fits(known, self.asked) or _fits(self.record["old"], self.asked)
        return new if new and meant and replacement.same(new, known) is not False else None

    def after(self) -> dict[str, t.Any]:
        """Raises Unknown where it is not known which card it was."""
        finished = self._finished()
        if finished:
            lines = [f"It was replaced already, {self.record['time']}:", *replacement.card_lines(finished, {})]
            problems = replacement.unlike(self.record["card"], finished)
            return {"summary": lines, "problems": problems, "card": finished, "finished": True, "published": []}
        old, before = self._base()
        new = replacement.there(self.now, old)
        problems = []
        if new is None:
            problems.append(
                f"no NIC is in {replacement.place(old)}, where {old['name']} was (seat it, look at the slot's power "
                "and at 'dmesg'; after a swap without a reboot: echo 1 > /sys/bus/pci/rescan)"
            )
        else:
            if replacement.same(new, old) and not self.options["same_card"]:
                problems.append(
                    f"{replacement.place(old)} still has the old card, serial {old['serial'] or 'unknown'} (swap it; "
                    "if it was only to be reseated: -e replace_nic_same_card=true)"
                )
            problems += replacement.unlike(old, new, self.options["other_model"])
        others = replacement.elsewhere(before, self.facts, old, new)
        allow = "put it right, or, where it is meant: -e replace_nic_other_changes=true"
        told = [f"more than this card has changed: {one}" for one in others]
        problems += [] if self.options["other_changes"] else [f"{one} ({allow})" for one in told]
        lines = ["the old card:", *(f"    {line}" for line in replacement.card_lines(old, {}))]
        if new:
            lines += ["the new card:", *(f"    {line}" for line in replacement.card_lines(new, {}))]
            changed = replacement.exchanged(old, new)
            lines += ["what is called otherwise now:", *(f"    {line}" for line in changed)] if changed else []
        lines += told if self.options["other_changes"] else []
        return {"summary": lines, "problems": problems, "card": new or old, "finished": False, "published": []}

    def done(self) -> dict[str, t.Any]:
        """Raises Unknown as L(after,)."""
        finished = self._finished()
        old, record = (self.record["old"], self.record) if finished else (self._base()[0], {})
        new = finished or replacement.there(self.now, old)
        if new is None:
            raise replacement.Unknown(f"no NIC is in {replacement.place(old)} any more (look at 'dmesg')")
        published = self.record.get("published") or []
        record = record or {
            "state": _DONE,
            "host": self.host,
            "time": _now(),
            "card": new,
            "old": old,
            "published": published,
        }
        shall = replacement.counterparts(old, new, published)
        left = replacement.gone(old, new)
        return {
            "summary": [],
            "problems": [],
            "card": new,
            "record": REPLACED.write(record),
            "published": shall,
            "gone": left,
        }


def _fits(card: replacement.Card, asked: dict[str, str]) -> bool:
    try:
        replacement.find([card], **asked)
    except replacement.Unknown:
        return False
    return True


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
