# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Settings of NICs and of the node, and how those of several rules become one. It imports nothing."""

from __future__ import annotations

import typing as t

Settings = dict[str, t.Any]


def merged(base: Settings, more: t.Mapping[str, t.Any]) -> Settings:
    """`base` with what `more` says; mappings are merged, None takes away, and all else is replaced."""
    result = overlaid(base, more)
    return {key: merged({}, one) if isinstance(one, dict) else one for key, one in result.items() if one is not None}


def overlaid(base: Settings, more: t.Mapping[str, t.Any]) -> Settings:
    """The same, where None stays: it is to take away what is still to come below."""
    result = dict(base)
    for key, value in more.items():
        if isinstance(value, dict):
            result[key] = overlaid(result[key] if isinstance(result.get(key), dict) else {}, value)
        else:
            result[key] = value
    return result
