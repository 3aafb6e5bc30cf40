# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Which processes belong to the node itself. Anyone can give a process any name and arguments."""

from __future__ import annotations

import os


def is_of_node(pid: str, root: str = "/") -> bool:
    """Whether a process is one of root or of this user, and not one of a container: it has the root folder of the node.

    `root` is the node's root folder, `/` except for a recorded tree. Raises OSError if the process has ended, or if it
    belongs to another user and this runs without root.
    """
    users = users_of(pid, root)
    return (
        bool(users) and users <= {0, os.geteuid()} and os.path.samefile(os.path.join(root, "proc", pid, "root"), root)
    )


def users_of(pid: str, root: str = "/") -> set[int]:
    """The real, effective, saved and file-system user IDs of a process (proc_pid_status(5)), as this process's user
    namespace shows them. Raises OSError if the process has ended."""
    # the owner of /proc/PID says less: it is root for every process that cannot be traced
    with open(os.path.join(root, "proc", pid, "status"), encoding="utf-8", errors="replace") as stream:
        ids = next((line.split()[1:] for line in stream if line.startswith("Uid:")), [])
    return {int(user) for user in ids}
