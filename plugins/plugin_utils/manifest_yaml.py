# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Kubernetes objects as YAML that PyYAML and go-yaml read the same way."""

from __future__ import annotations

import re

import yaml
from ansible_collections.lanewise.dra.plugins.module_utils.dra.apiserver.go_scalars import FIRST, NUMBER

#: Patterns of scalars that go-yaml v2 or v3 reads as a number, a time or a boolean, but PyYAML as text. Each is
#: preceded by the possible first characters.
_GO = (
    (FIRST, NUMBER),
    ("0123456789", r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt ].*)?"),
    ("yYnN", r"[yYnN]"),
)


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):
    """Quotes texts that PyYAML or Go would not read as text, and writes no anchors."""

    def ignore_aliases(self, data: object) -> bool:
        return True


for _first, _pattern in _GO:
    # any tag other than that of text causes quotes
    _Dumper.add_implicit_resolver("tag:yaml.org,2002:value", re.compile(rf"(?:{_pattern})\Z"), list(_first))
# the types of Ansible's values are derived from these
_Dumper.add_multi_representer(dict, _Dumper.represent_dict)
_Dumper.add_multi_representer(list, _Dumper.represent_list)
_Dumper.add_multi_representer(str, lambda dumper, value: dumper.represent_str(str(value)))
_Dumper.add_multi_representer(int, lambda dumper, value: dumper.represent_int(int(value)))
_Dumper.add_multi_representer(float, lambda dumper, value: dumper.represent_float(float(value)))


def to_manifest(value: object) -> str:
    """The value as YAML. See the documentation of the filter `lanewise.dra.to_manifest`."""
    text: str = yaml.dump(
        value, Dumper=_Dumper, allow_unicode=True, default_flow_style=False, indent=2, sort_keys=False, width=4096
    )
    if isinstance(value, (dict, list, tuple)):
        return text
    # PyYAML writes an end-of-document marker after a single value that is not quoted
    return text.removesuffix("...\n").rstrip("\n")
