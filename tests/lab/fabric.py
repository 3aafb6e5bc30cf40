# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Runs the fabric role's host resources on a lab node, with the node's Python."""

from __future__ import annotations

import json
import shlex
import typing as t
from pathlib import Path

from ansible_collections.lanewise.dra.plugins.module_utils.host.access import system
from ansible_collections.lanewise.dra.tests.host import faults
from ansible_collections.lanewise.dra.tests.lab.node import Node

FOLDER = "/opt/fabric"
_COLLECTION = f"{FOLDER}/ansible_collections/lanewise/dra"
_PROGRAM = """
import json, subprocess, sys
sys.path.insert(0, "/opt/fabric")
import importlib
base = "ansible_collections.lanewise.dra.plugins.module_utils.host.resources."
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.converge import Refused, converge
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.undo import Failed
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.node import Node
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.rules import Rule, selector
from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import HostError
from ansible_collections.lanewise.dra.tests.host.faults import FailingSystem
request = json.loads(sys.argv[1])
def run(argv):
    done = subprocess.run(argv, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr
system = FailingSystem(request["fail_at"], request["code"])
system._run = run
answer = {"changes": [], "refusals": [], "reboot": [], "failed": "", "remaining": 0, "interrupts": []}
try:
    rules = [Rule(key, selector({"address" if ":" in key else "interface": key, **({} if ":" in key else
             {"type": "virtual"})}), settings, count=1) for key, settings in request["settings"].items()]
    resources = [getattr(importlib.import_module(base + module), name)(system) for module, name in request["resources"]]
    node = Node(system, rules, request["general"], allow_management=True)
    outcome = converge(node, resources, check_mode=request["check"])
    answer["changes"] = [str(change) for change in outcome.changes]
    answer["interrupts"] = [change.interrupts for change in outcome.changes]
    answer["reboot"] = outcome.reboot
except Refused as refused:
    answer["refusals"] = [str(refusal) for refusal in refused.refusals]
except (Failed, HostError) as failed:
    answer["failed"] = str(failed)
    answer["remaining"] = len(getattr(failed, "remaining", ()))
answer["steps"] = system.steps
print(json.dumps(answer))
"""


def copy_package(node: Node) -> None:
    """Copy the package host, the packages that it imports, and faults.py to the node."""
    package = Path(system.__file__).absolute().parents[2]
    for name in ("host", "topology", "uplinks"):
        node.copy(package / name, f"{_COLLECTION}/plugins/module_utils/{name}")
    node.copy(Path(faults.__file__).absolute(), f"{_COLLECTION}/tests/host")


def converge(
    node: Node,
    resources: t.Sequence[tuple[str, str]],
    settings: dict[str, dict[str, t.Any]],
    general: dict[str, t.Any] | None = None,
    check: bool = False,
    fail_at: int = -1,
    code: int = 0,
) -> dict[str, t.Any]:
    """Converge a node to settings by PCI address or interface, with the resources given as (module, class).

    Returns `changes` and what they interrupt (`interrupts`), `refusals`, `reboot`, `failed` with the number of
    `remaining` changes, and `steps`. If `fail_at` is not negative, the step with that number (from 0) fails with
    the errno `code`.
    """
    request = {"resources": list(resources), "settings": settings, "general": general or {}}
    text = json.dumps({**request, "check": check, "fail_at": fail_at, "code": code})
    answer: dict[str, t.Any] = json.loads(node.ssh(f"python3 -c {shlex.quote(_PROGRAM)} {shlex.quote(text)}"))
    return answer


def converge_checked(node: Node, *args: t.Any, **options: t.Any) -> list[str]:
    """Call `converge`, and assert that check mode predicts the changes and that a second run changes nothing. Returns
    the changes."""
    predicted = converge(node, *args, check=True, **options)
    done = converge(node, *args, **options)
    assert not done["failed"] and not done["refusals"], done
    assert done["changes"] == predicted["changes"]
    again = converge(node, *args, **options)
    assert again["changes"] == [] and again["steps"] == [] and not again["failed"], again
    return t.cast("list[str]", done["changes"])
