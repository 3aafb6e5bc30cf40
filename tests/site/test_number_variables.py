# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Playbooks use a variable with the number 0 as it is; without a value, null and an empty text count as not set."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.site.plays import COLLECTION, run_playbook

#: An expression for a number, with the variable and what is used if it is not set.
_NUMBER = re.compile(r"\{\{ (\w+) \| default\((\w+), \1 \| default\(''\) is not number\) \}\}")
EXPRESSIONS = {
    match[1]: match
    for path in sorted((COLLECTION / "playbooks").rglob("*.yml"))
    for match in _NUMBER.finditer(path.read_text())
}


def test_all_playbooks_with_numbers_are_covered() -> None:
    prefixes = {variable.partition("_")[0] for variable in EXPRESSIONS}
    assert prefixes == {"defragment", "queue", "reserve", "swap"} and len(EXPRESSIONS) > 15


@pytest.mark.parametrize(
    ("value", "is_set"), [(0, True), (0.5, True), (7, True), ("7", True), ("0", True), ("", False), (None, False)]
)
def test_a_number_is_used_unless_it_is_null_or_empty(tmp_path: Path, value: object, is_set: bool) -> None:
    values = _evaluated(tmp_path, {variable: value for variable in EXPRESSIONS})
    for variable, match in EXPRESSIONS.items():
        assert values[variable] == (str(value) if is_set else _default(match)), variable


def test_a_variable_that_does_not_exist_is_not_set(tmp_path: Path) -> None:
    assert _evaluated(tmp_path, {}) == {variable: _default(match) for variable, match in EXPRESSIONS.items()}


def _default(match: re.Match[str]) -> str:
    return "not set" if match[2] == "omit" else match[2]


def _evaluated(folder: Path, variables: dict[str, object]) -> dict[str, str]:
    """The texts of all expressions. Ansible evaluates them, with a text in place of `omit`."""
    expressions = {name: match[0].replace("default(omit", "default('not set'") for name, match in EXPRESSIONS.items()}
    lines = "\n".join(f"{name}={expression}" for name, expression in expressions.items())
    out = folder / "out"
    copy = {"ansible.builtin.copy": {"dest": str(out), "content": lines, "mode": "0644"}}
    playbook = folder / "numbers.yml"
    playbook.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "vars": variables, "tasks": [copy]}]))
    run_playbook(folder, {"node": {}}, str(playbook.with_suffix("")))
    return dict(line.split("=", 1) for line in out.read_text().splitlines())
