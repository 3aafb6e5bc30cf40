# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Every network namespace of this node that can be listed: those of processes, threads, open files of processes, and
mounts in any mount namespace.

A namespace that is kept alive only by a socket, or by a file in transit through a Unix socket, cannot be listed. So an
interface that is not found here may still exist. A search takes some milliseconds per thousand processes: use it in
rare cases, not for every pod.
"""

from __future__ import annotations

import os
import re
import time
import typing as t

from . import netns

_PROC = "/proc"
_ESCAPED = re.compile(r"\\([0-7]{3})")
#: How the target of a symbolic link to a network namespace starts.
_LINK_PREFIX = "net:["
#: How long the kernel may take to destroy a namespace that is no longer listed, and the first pause between two
#: searches.
DESTRUCTION_SECONDS, _FIRST_PAUSE_SECONDS = 2.5, 0.01

Key = tuple[int, int]


class Namespace(t.NamedTuple):
    """One namespace: an open file, which is closed at the next iteration; the namespace's unique key; and a description
    of the owner for messages."""

    descriptor: int
    key: Key
    owner: str


def attempts(timeout: float = DESTRUCTION_SECONDS) -> t.Iterator[None]:
    """Yield once for each attempt to find something in a namespace that cannot be listed: at least once, for the last
    time after `timeout` seconds, and with growing pauses in between.

    A namespace can no longer be listed when its last user has ended, but a kernel worker destroys it only some time
    later (cleanup_net in net/core/net_namespace.c). Until then, its interfaces still exist.
    """
    pause, end = _FIRST_PAUSE_SECONDS, time.monotonic() + timeout
    yield
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(pause, left))
        pause *= 2
        yield


def other_namespaces() -> t.Iterator[Namespace]:
    """Every network namespace except the driver's own, once each. Processes may start and end during the iteration."""
    own = os.stat(netns.HOST)
    seen: set[Key] = {(own.st_dev, own.st_ino)}
    for path, owner in _paths():
        descriptor = _open_new(path, own.st_dev, seen)
        if descriptor is None:
            continue
        try:
            status = os.fstat(descriptor)
            yield Namespace(descriptor, (status.st_dev, status.st_ino), owner)
        finally:
            os.close(descriptor)


def _open_new(path: str, device: int, seen: set[Key]) -> int | None:
    """Open the network namespace at a path, unless its key is in `seen`, and add the key. Nothing else is opened,
    because a path in a pod's mount namespace may lead to anything. None if it was not opened."""
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(handle)
        key = status.st_dev, status.st_ino
        if status.st_dev != device or key in seen:
            return None
        descriptor = os.open(f"{_PROC}/self/fd/{handle}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    finally:
        os.close(handle)
    seen.add(key)
    if netns.is_open(descriptor):
        return descriptor
    os.close(descriptor)
    return None


def _paths() -> t.Iterator[tuple[str, str]]:
    """Paths of namespaces and descriptions of their owners, the likely ones first."""
    processes = [entry for entry in os.listdir(_PROC) if entry.isdigit()]
    for process in processes:
        yield f"{_PROC}/{process}/ns/net", f"process {process}"
    mounts: dict[str, str] = {}
    for process in processes:
        mounts.setdefault(_link_target(f"{_PROC}/{process}/ns/mnt"), process)
    for process in mounts.values():
        for point in _mount_points(process):
            yield f"{_PROC}/{process}/root{point}", f"the mount {point}"
    for process in processes:
        for entry in _listed(f"{_PROC}/{process}/fd"):
            if _link_target(f"{_PROC}/{process}/fd/{entry}").startswith(_LINK_PREFIX):
                yield f"{_PROC}/{process}/fd/{entry}", f"an open file of process {process}"
    for process in processes:
        threads = _listed(f"{_PROC}/{process}/task")
        for thread in threads if len(threads) > 1 else ():
            yield f"{_PROC}/{process}/task/{thread}/ns/net", f"thread {thread} of process {process}"


def _mount_points(process: str) -> list[str]:
    """The mount points of network namespaces in a process's mount namespace."""
    try:
        with open(f"{_PROC}/{process}/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            lines = [line.split(" ") for line in file if " - nsfs " in line]
    except OSError:
        return []
    points = [fields[4] for fields in lines if len(fields) > 4 and fields[3].startswith(_LINK_PREFIX)]
    return [_ESCAPED.sub(lambda match: chr(int(match.group(1), 8)), point) for point in points]


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # the process has ended
        return []


def _link_target(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
