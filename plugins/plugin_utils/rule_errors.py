# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Errors in the options of the module fabric, each with its path: list index, name of the rule or profile, and key.

Ansible's own check of a module's arguments names the keys (`mtu` in `nics`), but not which entry of a list has the
error. It does not check the settings of profiles, whose names are free; the module does that, on the node.
"""

from __future__ import annotations

import re

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.common.validation import check_type_list
from ansible_collections.lanewise.dra.plugins.module_utils.fabric_options import NIC, NODE, RULE, split_nulls
from ansible_collections.lanewise.dra.plugins.plugin_utils.known_variables import hint
from ansible_collections.lanewise.dra.plugins.plugin_utils.values import Option, Result, Spec, Variables

_MAX_SHOWN = 60  # characters of a value
#: The settings of a NIC, and those inside them, such as `ethtool.pause`.
_SETTINGS = {
    *NIC,
    *(f"{name}.{inner}" for name in NIC if NIC[name]["type"] == "dict" for inner in NIC[name].get("options", ())),
}
_PLAIN: dict[str, type] = {"bool": bool, "dict": dict, "int": int, "str": str}
#: The types of options in messages: one value, and a list of values.
_TYPES = {
    "dict": ("a mapping", "mappings"),
    "list": ("a list", "lists"),
    "int": ("a whole number", "whole numbers"),
    "bool": ("true or false", "true or false"),
    "str": ("a string", "strings"),
}


def option_errors(args: Variables) -> list[str]:
    """All errors in `nics`, `node` and `profiles` of the module."""
    errors = []
    nics = args.get("nics")
    if isinstance(nics, (list, tuple)):
        for index, rule in enumerate(nics):
            name = rule.get("name") if isinstance(rule, dict) else None
            path = f"nics[{index}]" + (f" ({name})" if isinstance(name, str) else "")
            errors += _entry_errors(path, rule, RULE)
            errors += _unset_errors(path, rule) if isinstance(rule, dict) else []
    elif nics is not None:
        errors.append(f"nics: {_shortened(nics)} is not a list of rules")
    errors += _mapping_errors("node", args.get("node"), NODE)
    profiles = args.get("profiles")
    if isinstance(profiles, dict):
        for name, settings in profiles.items():
            errors += _mapping_errors(f"profiles.{name}", settings, NIC)
    elif profiles is not None:
        errors.append(f"profiles: {_shortened(profiles)} is not a mapping of names to settings")
    return errors


def _entry_errors(path: str, value: object, spec: Spec) -> list[str]:
    """As `_mapping_errors`, for an entry of a list, which null does not leave unset."""
    return [f"{path}: null is not a mapping"] if value is None else _mapping_errors(path, value, spec)


def _mapping_errors(path: str, value: object, spec: Spec) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, dict):
        return [f"{path}: {_shortened(value)} is not a mapping"]
    errors = [
        f"{path}: {name} is not known: {hint(str(name), spec) or 'use one of ' + ', '.join(sorted(spec))}"
        for name in value
        if name not in spec
    ]
    errors += [f"{path}: {name} is missing" for name in spec if spec[name].get("required") and value.get(name) is None]
    for name, setting in value.items():
        if name in spec and setting is not None:
            errors += _value_errors(f"{path}.{name}", name, setting, spec[name])
    return errors


def _value_errors(path: str, name: str, value: object, option: Option) -> list[str]:
    inner = option.get("options")
    if inner and option["type"] == "dict":
        return _mapping_errors(path, value, inner)
    if inner:
        if not isinstance(value, (list, tuple)):
            return [f"{path}: {_shortened(value)} is not a list of mappings with {', '.join(sorted(inner))}"]
        return [text for index, item in enumerate(value) for text in _entry_errors(f"{path}[{index}]", item, inner)]
    if _is_plain(value, option):
        return []
    plain = {key: constraint for key, constraint in option.items() if key in ("type", "elements", "choices")}
    if ArgumentSpecValidator({name: plain}).validate({name: value}).error_messages:
        return [f"{path}: {_shortened(value)} is not {_expected(option)}"]
    return []


def _unset_errors(path: str, rule: Variables) -> list[str]:
    """The names in a rule's `unset` that are no settings of a NIC."""
    unknown = [name for name in _unset_names(rule.get("unset")) if not _is_setting(name)]
    return [
        f"{path}.unset: {_shortened(name)} is not a setting: "
        f"{hint(name, _SETTINGS) or 'use a name such as mtu or roce.tos'}"
        for name in unknown
    ]


def _unset_names(value: object) -> list[str]:
    """The names in the option `unset`, split at commas if it is a string, as Ansible does; empty if it is no list."""
    try:
        return [str(name).strip() for name in check_type_list(value)] if value else []
    except TypeError:
        return []


def _is_setting(name: str) -> bool:
    """Whether this is the name of a NIC's setting, such as `ethtool.pause`. Names in a mapping without options, such as
    `firmware`, are free."""
    spec: Spec | None = NIC
    for part in name.split("."):
        if spec is None:
            return bool(part)
        if part not in spec:
            return False
        option = spec[part]
        spec = option.get("options") if option["type"] == "dict" else {}
    return True


def _is_plain(value: object, option: Option) -> bool:
    """Whether a value already has the option's type, so that no validator is needed, which takes a millisecond."""
    if option.get("elements") in _PLAIN and isinstance(value, list):
        inner = {**option, "type": option["elements"], "elements": None}
        return all(_is_plain(item, inner) for item in value)
    kind = _PLAIN.get(option["type"])
    if kind is None or not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        return False
    return value in option.get("choices", (value,))


def _expected(option: Option) -> str:
    """What a value of the option must be, for a message."""
    choices = ", ".join(map(str, option.get("choices", ())))
    if not option.get("elements"):
        return f"one of {choices}" if choices else _TYPES[option["type"]][0]
    return f"a list with values from: {choices}" if choices else f"a list of {_TYPES[option['elements']][1]}"


def _shortened(value: object) -> str:
    text = re.sub(r"\s+", " ", repr(str(value) if isinstance(value, str) else value))
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def module_arguments(args: Variables) -> Result:
    """The arguments as the module takes them, if `option_errors` finds none.

    Settings that are null in a rule are listed in its `unset`. Profiles that no rule uses are removed.
    """
    result = dict(args)
    if isinstance(result.get("node"), dict):
        result["node"] = split_nulls(result["node"])[0]
    if isinstance(result.get("nics"), list):
        result["nics"] = [_rule(rule) for rule in result["nics"]]
        if isinstance(result.get("profiles"), dict):
            result["profiles"] = _used_profiles(result["nics"], result["profiles"])
    return result


def _used_profiles(rules: list[Result], profiles: Variables) -> Variables:
    """The profiles that rules use, because a node checks each profile that it gets.

    All profiles if a rule names an undefined one, because the error message lists them.
    """
    names = {rule["profile"] for rule in rules if rule.get("profile")}
    return {name: profiles[name] for name in names} if names <= profiles.keys() else profiles


def _rule(rule: Variables) -> Result:
    settings, nulls = split_nulls({name: value for name, value in rule.items() if name in NIC})
    rest, _unused = split_nulls({name: value for name, value in rule.items() if name not in NIC})
    unset = [*_unset_names(rest.get("unset")), *nulls]
    return {**rest, **settings, **({"unset": unset} if unset else {})}
