# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check a NIC before and after it is replaced. The documentation is in plugins/modules/nic_replacement.py."""

from __future__ import annotations

import dataclasses
import datetime
import json
import pathlib

from ansible.errors import AnsibleActionFail
from ansible_collections.lanewise.dra.plugins.module_utils.topology.model import Topology
from ansible_collections.lanewise.dra.plugins.module_utils.topology.stored import Formats
from ansible_collections.lanewise.dra.plugins.plugin_utils import replacement
from ansible_collections.lanewise.dra.plugins.plugin_utils.card import (
    Card,
    NoUniqueCard,
    card_at,
    cards,
    find,
    function_addresses,
    location,
    same_card,
    title,
    with_stored_values,
)
from ansible_collections.lanewise.dra.plugins.plugin_utils.controller_action import ControllerAction
from ansible_collections.lanewise.dra.plugins.plugin_utils.host_facts import facts_of
from ansible_collections.lanewise.dra.plugins.plugin_utils.report_formats import (
    FORMATS,
    REPLACED,
    Unusable,
    check_facts_version,
    read_stored,
)
from ansible_collections.lanewise.dra.plugins.plugin_utils.report_store import file_name
from ansible_collections.lanewise.dra.plugins.plugin_utils.values import Json, Result, Spec, Variables

_SPEC: Spec = {
    "phase": {"type": "str", "choices": ["before", "after", "done"], "required": True, "aliases": ["tell"]},
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
#: States of a record: the old card may be removed; the new card was accepted.
_OUT, _DONE = "out", "done"


class ActionModule(ControllerAction):
    """Reads the host's facts and the folder of the report. Never connects to a target, and writes nothing."""

    def run(self, tmp: str | None = None, task_vars: Variables | None = None) -> Result:
        result = super().run(tmp, task_vars)
        variables = task_vars or {}
        _unused, options = self.validate_argument_spec(argument_spec=_SPEC)
        host = variables["inventory_hostname"]
        facts = facts_of(variables, host)
        if facts is None:
            raise AnsibleActionFail(f"the topology of {host} is not known: run the role lanewise.dra.topology first")
        missing = sorted(_SECTIONS - facts.keys())
        if missing:
            raise AnsibleActionFail(
                f"the facts of {host} lack {', '.join(missing)}: probe all subsets (topology_subset)"
            )
        folder = pathlib.Path(self._loader.path_dwim(options["report"]))
        path = folder / "replaced" / f"{file_name(host)}.json"
        record = _read(path, REPLACED)
        stored = _read(folder / "nodes" / f"{file_name(host)}.json", FORMATS).get("facts")
        check = _Check(host, options, facts, _stored_facts(stored, host), record)
        try:
            if options["phase"] == "before":
                outcome = check.before(variables["hostvars"].raw_get(host))
            else:
                outcome = check.after() if options["phase"] == "after" else check.done()
        except NoUniqueCard as error:
            outcome = {"problems": [str(error)], "summary": []}
        result.update(outcome, path=str(path), changed=False)
        return result


def _read(path: pathlib.Path, formats: Formats) -> Json:
    """A file of the report; empty if it does not exist.

    Raises AnsibleActionFail if it is damaged, or from a newer release.
    """
    try:
        return read_stored(json.loads(path.read_bytes()), path, formats)
    except FileNotFoundError:
        return {}
    except Unusable as error:
        raise AnsibleActionFail(str(error)) from None
    except (OSError, ValueError, RecursionError) as error:
        raise AnsibleActionFail(f"cannot read {path}: {error}") from error


def _stored_facts(stored: object, host: str) -> Json | None:
    """A node's facts in the report. Raises AnsibleActionFail if they are from a newer release."""
    if not isinstance(stored, dict):
        return None
    try:
        check_facts_version(stored.get("schema_version"), f"{host} (in the report)")
    except Unusable as error:
        raise AnsibleActionFail(str(error)) from None
    return stored


class _Check:
    """One call: the node now, its facts in the site report (`stored`), and the `record` of the replacement."""

    def __init__(
        self,
        host: str,
        options: Variables,
        facts: Json,
        stored: Json | None,
        record: Json,
    ) -> None:
        self.host = host
        self.options = options
        self.facts = facts
        self.stored = stored
        self.record = record
        self.current = cards(facts)  # the node's cards now
        self.requested = {key: options[key] for key in ("slot", "address", "serial")}

    def before(self, variables: object) -> Result:
        """What depends on the card. Raises NoUniqueCard unless exactly one card matches the request."""
        known = cards(self.stored) if self.stored else []
        facts, lines, problems = self.facts, [], []
        record = self.record if self.record.get("state") == _OUT else {}
        try:
            card = find(self.current, **self.requested)
        except NoUniqueCard:
            if not any(_matches(known_card, self.requested) for known_card in known):
                raise
            card, facts = find(known, **self.requested), self.stored or {}
            lines.append("The node does not show this card any more. The site report has:")
        else:
            card = with_stored_values(card, card_at(known, card))
        if record and same_card(record["card"], card) is False:
            problems.append(
                f"a replacement of {title(record['card'])} began at {record['time']}. Finish that first "
                "(replace_nic_phase=after)."
            )
        cluster, users = self.options["cluster"], self.options["users"]
        reasons = replacement.management_reasons(card, users.get("management") or {}) if facts is self.facts else []
        problems += [
            f"this card carries the node's own traffic, so the node is unreachable without it: {reason} (move routes, "
            "sessions and storage to another NIC first; or replace it by hand and run lanewise.dra.site)"
            for reason in reasons
        ]
        devices = replacement.published_devices(card, self.options["node"], cluster) if cluster else []
        lines += replacement.card_lines(card, users.get("users") or {})
        host_variables = variables if isinstance(variables, dict) else {}
        rules, driver = self.options["rules"], self.options["driver"]
        in_inventory = replacement.inventory_lines(card, facts, rules, driver, host_variables)
        lines += _section("in the inventory", in_inventory)
        if cluster:
            lines += _section("in the cluster", replacement.cluster_lines(devices, cluster["claims"]))
        else:
            lines.append("in the cluster: not checked, as no kubeconfig is set")
        addresses = sorted({device["address"] for device in devices})
        if not record or facts is self.facts:
            record = {
                "state": _OUT,
                "host": self.host,
                "time": record.get("time") or _now(),
                "card": card,
                "facts": self.facts,
                "published": addresses or record.get("published") or [],
            }
        functions = function_addresses(card)
        in_use = {key: user for key, user in (users.get("users") or {}).items() if key in functions}
        return {
            "summary": lines,
            "problems": problems,
            "card": card,
            "functions": sorted(functions),
            "in_use": [f"{address}: {in_use[address]}" for address in sorted(in_use)],
            "record": REPLACED.write(record),
            "published": addresses,
        }

    def _before_replacement(self) -> tuple[Card, Json]:
        """The old card, and the node's facts before the replacement. Raises NoUniqueCard if they were not stored."""
        if self.record.get("state") == _OUT:
            card = self.record["card"]
            if any(self.requested.values()) and not _matches(card, self.requested):
                raise NoUniqueCard(f"the card that is being replaced is another one: {title(card)}")
            return card, self.record["facts"]
        if not self.stored:
            raise NoUniqueCard(
                "neither this playbook (replace_nic_phase=before) nor the site report has the node's state before the "
                "replacement, so there is nothing to compare the new card with: run lanewise.dra.site for this node"
            )
        return find(cards(self.stored), **self.requested), self.stored

    def _finished(self) -> Card | None:
        """The card in its current state, if an earlier run accepted it."""
        if self.record.get("state") != _DONE:
            return None
        known = self.record["card"]
        new = card_at(self.current, known)
        selected = (
            not any(self.requested.values())
            or _matches(known, self.requested)
            or _matches(self.record["old"], self.requested)
        )
        return new if new and selected and same_card(new, known) is not False else None

    def after(self) -> Result:
        """Whether the new card can replace the old one. Raises NoUniqueCard if the old card is not known."""
        finished = self._finished()
        if finished:
            lines = [f"The card was already replaced, at {self.record['time']}:", *replacement.card_lines(finished, {})]
            problems = replacement.replacement_problems(self.record["card"], finished)
            return {"summary": lines, "problems": problems, "card": finished, "finished": True, "published": []}
        old, before = self._before_replacement()
        new = card_at(self.current, old)
        problems = []
        if new is None:
            problems.append(
                f"no NIC is in {location(old)}, where {old['name']} was (reseat it, check the slot's power "
                "and 'dmesg'; if the card was replaced without a reboot: echo 1 > /sys/bus/pci/rescan)"
            )
        else:
            if same_card(new, old) and not self.options["same_card"]:
                problems.append(
                    f"{location(old)} still has the old card, serial {old['serial'] or 'unknown'} (replace "
                    "it; if it was only reseated: -e replace_nic_same_card=true)"
                )
            problems += replacement.replacement_problems(old, new, self.options["other_model"])
        differences = replacement.other_differences(before, self.facts, old, new)
        advice = "fix it, or accept it: -e replace_nic_other_changes=true"
        other_lines = [f"more than this card has changed: {difference}" for difference in differences]
        problems += [] if self.options["other_changes"] else [f"{line} ({advice})" for line in other_lines]
        lines = ["the old card:", *(f"    {line}" for line in replacement.card_lines(old, {}))]
        if new:
            lines += ["the new card:", *(f"    {line}" for line in replacement.card_lines(new, {}))]
            changes = replacement.card_changes(old, new)
            lines += ["changed names, addresses and firmware:", *(f"    {line}" for line in changes)] if changes else []
        lines += other_lines if self.options["other_changes"] else []
        return {"summary": lines, "problems": problems, "card": new or old, "finished": False, "published": []}

    def done(self) -> Result:
        """The record of the finished replacement. Raises NoUniqueCard as `after` does."""
        finished = self._finished()
        old, record = (self.record["old"], self.record) if finished else (self._before_replacement()[0], {})
        new = finished or card_at(self.current, old)
        if new is None:
            raise NoUniqueCard(f"no NIC is in {location(old)} any more (see 'dmesg')")
        published = self.record.get("published") or []
        record = record or {
            "state": _DONE,
            "host": self.host,
            "time": _now(),
            "card": new,
            "old": old,
            "published": published,
        }
        expected = replacement.counterparts(old, new, published)
        return {
            "summary": [],
            "problems": [],
            "card": new,
            "record": REPLACED.write(record),
            "published": expected,
            "gone": replacement.stale_identifiers(old, new),
        }


def _section(heading: str, lines: list[str]) -> list[str]:
    """A heading with its lines below it."""
    return [f"{heading}:", *(f"    {line}" for line in lines)] if lines else [f"{heading}: nothing"]


def _matches(card: Card, requested: dict[str, str]) -> bool:
    """Whether a card has the requested slot, address and serial number."""
    try:
        find([card], **requested)
    except NoUniqueCard:
        return False
    return True


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
