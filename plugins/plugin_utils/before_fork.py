# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# Note: this file is private to the collection.

"""Loads plugins once in Ansible's main process, so that the processes of tasks do not load them again.

Ansible forks a process for each task and host. Each of them loads all filters and tests of Ansible when it resolves its
first template with a filter, unless the main process has loaded them. The main process imports an action plugin before
it forks for the first task that uses it.
"""

from __future__ import annotations

import contextlib

from ansible.plugins.loader import filter_loader, test_loader


def load_filters() -> None:
    """Load Ansible's own filters and tests. If that fails, the template that needs one reports the error."""
    for loader, name in ((filter_loader, "bool"), (test_loader, "failed")):
        with contextlib.suppress(Exception):
            loader.get(name)
