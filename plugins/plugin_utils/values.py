# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# Note: this file is private to the collection.

"""Types of data from outside the collection: variables of a site, results of modules, content of files.

Such values can have any type. Data that the collection creates has more specific types.
"""

from __future__ import annotations

import typing as t

from ..module_utils.fabric_options import Option, Spec

__all__ = ("Json", "Option", "Result", "Spec", "Variables")

#: Variables of a host, or a module's options after Ansible's check of the argument spec.
Variables = t.Mapping[str, t.Any]
#: What a module or an action returns: JSON, with keys that Ansible and the module define.
Result = dict[str, t.Any]
#: Content of a JSON file. The function that returns it says what it has checked.
Json = dict[str, t.Any]
