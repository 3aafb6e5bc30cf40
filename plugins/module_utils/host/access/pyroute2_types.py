# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Types for the objects of pyroute2, which has none. It does not import pyroute2, which is slow to load."""

from __future__ import annotations

import typing as t

#: A netlink socket.
Socket = t.Any
#: A message or a nested attribute, which is a dictionary with methods such as `get_attr`.
Message = t.Any
