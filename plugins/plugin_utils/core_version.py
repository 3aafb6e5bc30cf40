# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The oldest ansible-core that the collection works with. Ansible itself only warns about an older one."""

from __future__ import annotations

import sys

from ansible.errors import AnsibleActionFail
from ansible.release import __version__

MIN_VERSION = (2, 19)  # the same as in meta/runtime.yml


def require_supported_core() -> None:
    """Raises AnsibleActionFail if the running ansible-core is older than `MIN_VERSION`."""
    if tuple(int(part) for part in __version__.split(".")[:2]) < MIN_VERSION:
        needed = ".".join(map(str, MIN_VERSION))
        raise AnsibleActionFail(
            f"The collection lanewise.dra needs ansible-core {needed} or later; this is {__version__}, run by "
            f"{sys.executable}. Install a newer release there (pip install 'ansible-core>={needed}', on Python 3.11 or "
            "later), or run 'make setup' in a checkout of the collection and use the ansible-core that it prints."
        )
