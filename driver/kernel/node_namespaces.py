# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Every network namespace of this node that can be listed: those of processes and threads, of open files of processes,
and of mounts in any mount namespace.

A namespace that is kept alive only by a socket, or by a file in transit through a Unix socket, cannot be listed. So
something that is not found here may still exist. A search takes some milliseconds per thousand processes: use it in
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
_NAME = "net:["
#: Seconds that the kernel may take to destroy an unlisted namespace, and the first pause between two searches.
DESTRUCTION_SECONDS, _PAUSE = 2.5, 0.01

Key = tuple[int, int]


class Namespace(t.NamedTuple):
    """One namespace: an open file of it, which is closed at the next iteration; its unique key; and a description of
    its owner for messages."""

    descriptor: int
    key: Key
    owner: str


def attempts(patience: float = DESTRUCTION_SECONDS) -> t.Iterator[None]:
    """Yields once for each attempt to find something in a namespace that cannot be listed: at least once, for the last
    time after `patience` seconds.

    A namespace can no longer be listed once its last user is gone, but a kernel worker destroys it some time later
    (cleanup_net in net/core/net_namespace.c). Until then its contents still exist.
    """
    pause, end = _PAUSE, time.monotonic() + patience
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
    """The network namespace at a path, if it is one that was not seen yet. Nothing else is opened, because a path in a
    pod's mount namespace may lead to anything."""
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(place)
        key = status.st_dev, status.st_ino
        if status.st_dev != device or key in seen:
            return None
        descriptor = os.open(f"{_PROC}/self/fd/{place}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    finally:
        os.close(place)
    seen.add(key)
    if netns.is_open(descriptor):
        return descriptor
    os.close(descriptor)
    return None


def _paths() -> t.Iterator[tuple[str, str]]:
    """Paths of namespaces and their owners, the likely ones first."""
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
            if _link_target(f"{_PROC}/{process}/fd/{entry}").startswith(_NAME):
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
    found = [words[4] for words in lines if len(words) > 4 and words[3].startswith(_NAME)]
    return [_ESCAPED.sub(lambda match: chr(int(match.group(1), 8)), point) for point in found]


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
