# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Configures interfaces of a node. The node is a process in its own network namespace."""

from __future__ import annotations

import typing as t

from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import System
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.converge import Outcome, Refused, converge
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.node import Node
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.resource import Resource
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.rules import Rule, selector


def node(system: System, settings: dict[str, dict[str, t.Any]], general: dict[str, t.Any] | None = None) -> Node:
    """The node, with settings by interface. Management interfaces may be changed: there is no connection to lose."""
    rules = [
        Rule(name, selector({"interface": name, "type": "virtual"}), one, count=1) for name, one in settings.items()
    ]
    return Node(system, rules, general, allow_management=True)


def apply(resource: type[Resource], settings: dict[str, dict[str, t.Any]], check_mode: bool = False) -> Outcome:
    """Configure the node. Checks that check mode predicted the changes, and that a second run makes none."""
    system = System()
    try:
        target = node(system, settings)
        predicted = converge(target, [resource(system)], check_mode=True)
        if check_mode:
            return predicted
        outcome = converge(target, [resource(system)])
        assert [str(change) for change in outcome.changes] == [str(change) for change in predicted.changes]
        assert not converge(node(system, settings), [resource(system)]).changes
        return outcome
    finally:
        system.close()


def refusals(
    resource: type[Resource], settings: dict[str, dict[str, t.Any]], general: dict[str, t.Any] | None = None
) -> list[str]:
    """The reasons why the node refuses the settings. Fails if it refuses none."""
    system = System()
    try:
        converge(node(system, settings, general), [resource(system)])
    except Refused as refused:
        return [str(one) for one in refused.refusals]
    finally:
        system.close()
    raise AssertionError("nothing was refused")
