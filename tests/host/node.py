# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Configure the interfaces of a node, which is a process in its own network namespace (`on_a_node`)."""

from __future__ import annotations

import subprocess
import typing as t

from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import System
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.converge import Outcome, Refused, converge
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.node import Node
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.resource import Resource
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.rules import Rule, selector


def run_program(argv: list[str]) -> tuple[int, str, str]:
    """Run a program as System expects it: returns exit status, output and error output."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def node(system: System, settings: dict[str, dict[str, t.Any]], general: dict[str, t.Any] | None = None) -> Node:
    """The node, with settings by interface and, in `general`, of the node itself.

    Management interfaces may be changed, because no SSH session needs them.
    """
    rules = [
        Rule(name, selector({"interface": name, "type": "virtual"}), wanted, count=1)
        for name, wanted in settings.items()
    ]
    return Node(system, rules, general, allow_management=True)


def apply(resource: type[Resource], settings: dict[str, dict[str, t.Any]], check_mode: bool = False) -> Outcome:
    """Configure the node. Checks that check mode predicts the changes, and that a second run makes none.

    With `check_mode`, changes nothing and returns the prediction.
    """
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
    """The reasons why the settings are refused. Fails if none is refused."""
    system = System()
    try:
        converge(node(system, settings, general), [resource(system)])
    except Refused as refused:
        return [str(refusal) for refusal in refused.refusals]
    finally:
        system.close()
    raise AssertionError("nothing was refused")
