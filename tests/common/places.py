# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The folders of the repository, in a checkout and in the staged copy."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.lanewise.dra.plugins.module_utils.topology import model

#: The folder of the collection as Ansible finds it: the repository, which a checkout contains as a symbolic link.
COLLECTION = Path(model.__file__).absolute().parents[3]
#: The folder for ANSIBLE_COLLECTIONS_PATH.
COLLECTIONS = COLLECTION.parents[2]
