# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Network namespaces: identifying one by path, pinning one so that it stays alive, and running code inside one.

A pin is a bind mount of a namespace's file. It keeps the namespace and its interfaces alive after the pod's last
process has ended, so that the driver can take the interfaces back before the kernel drops them.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import os
import stat
import threading
import typing as t
from pathlib import Path

from ..base.errors import Busy, KernelError

#: The namespace that the driver runs in: the node's.
HOST = "/proc/self/ns/net"
#: The namespace of the calling thread.
_THREAD = "/proc/thread-self/ns/net"

_CLONE_FS = 0x00000200
_CLONE_NEWNS = 0x00020000
_CLONE_NEWNET = 0x40000000
_MS_BIND = 4096
_MNT_DETACH = 2
#: NS_GET_NSTYPE of linux/nsfs.h: returns the type of an nsfs file's namespace.
_NS_GET_NSTYPE = 0xB703

_libc = ctypes.CDLL(None, use_errno=True)
log = logging.getLogger(__name__)

T = t.TypeVar("T")
P = t.ParamSpec("P")
PathLike = t.Union[str, "os.PathLike[str]"]


def identity(path: PathLike) -> tuple[int, int]:
    """The device and inode of a namespace, which are unique among existing namespaces. Raises KernelError if the path
    does not exist."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise KernelError(f"stat the network namespace {os.fspath(path)}", error.errno or 0) from error
    return status.st_dev, status.st_ino


def same(path: PathLike, other: PathLike) -> bool:
    """Whether both paths are the same namespace; False if either does not exist."""
    try:
        first, second = os.stat(path), os.stat(other)
    except OSError:
        return False
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)


def is_host(path: PathLike) -> bool:
    """Whether the path is the namespace that the driver runs in."""
    return same(path, HOST)


def alive(path: PathLike) -> bool:
    """Whether the path is a network namespace; a pin that is not mounted, such as one from before a reboot, is not."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return is_open(descriptor)
    finally:
        os.close(descriptor)


def is_open(descriptor: int) -> bool:
    """Whether an open file is a network namespace."""
    try:
        return fcntl.ioctl(descriptor, _NS_GET_NSTYPE) == _CLONE_NEWNET
    except OSError:  # not an nsfs file
        return False


def processes(path: PathLike) -> list[int]:
    """The PIDs of the processes in a namespace. If there are none, only pins, open files and sockets keep the namespace
    alive. Raises KernelError if the path does not exist."""
    namespace = identity(path)
    pids = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                status = os.stat(f"/proc/{entry}/ns/net")
            except OSError:  # the process has ended
                continue
            if (status.st_dev, status.st_ino) == namespace:
                pids.append(int(entry))
    return sorted(pids)


def pin(source: PathLike, at: Path, mounts: str | None = None) -> None:
    """Mount the namespace `source`, such as `/proc/1234/ns/net`, at the file `at`. Idempotent.

    `mounts` is the mount namespace to mount in (`/proc/1/ns/mnt`). A driver with its own mount namespace needs it: a
    pin in the driver's mount namespace would disappear with the driver. Raises Busy if another namespace is pinned at
    `at`, and KernelError if a step fails.
    """
    step = f"pin the network namespace {os.fspath(source)}"
    descriptor = _open(source, step)
    try:
        status = os.fstat(descriptor)
        if alive(at):
            if identity(at) == (status.st_dev, status.st_ino):
                return
            raise Busy(f"{step}: another namespace is pinned at {at}")

        def mount() -> None:
            at.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(at, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o400))
            # by descriptor, because the process may end at any moment, and its PID may be reused
            target = f"/proc/{os.getpid()}/fd/{descriptor}"
            if _libc.mount(target.encode(), os.fsencode(at), b"none", _MS_BIND, None):
                raise OSError(ctypes.get_errno(), "mount")

        _in_mount_namespace(mount, mounts, step)
        if not alive(at):
            raise KernelError(step, errno.EINVAL, f"{at} is not a network namespace after mounting it")
    finally:
        os.close(descriptor)


def unpin(at: Path, mounts: str | None = None) -> None:
    """Remove a pin and its file. Idempotent. Raises KernelError."""

    def unmount() -> None:
        while _libc.umount2(os.fsencode(at), _MNT_DETACH) == 0:  # two drivers may both have mounted it
            pass
        code = ctypes.get_errno()
        if code not in (errno.EINVAL, errno.ENOENT):
            raise OSError(code, "umount")
        at.unlink(missing_ok=True)

    _in_mount_namespace(unmount, mounts, f"unpin the network namespace {at}")


def run(path: PathLike | int | None, function: t.Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call the function in the network namespace `path`, a path or an open file; None is the driver's own namespace.

    The calling thread enters the namespace and returns to its own afterwards. The main thread never leaves its
    namespace, because `/proc/self/ns/net` is the main thread's: a new thread makes the call instead, which takes a
    millisecond on a busy machine. Exceptions of `function` are passed on. Raises KernelError if the namespace cannot be
    entered. If a thread cannot return to its namespace, the process aborts: otherwise the thread would continue in a
    pod's network as if that were the node's.
    """
    if path is None:
        return function(*args, **kwargs)
    step = "enter the pod's network namespace"
    descriptor = path if isinstance(path, int) else _open(path, step)

    def inside() -> T:
        previous = os.open(_THREAD, os.O_RDONLY | os.O_CLOEXEC)
        try:
            try:
                _setns(descriptor, _CLONE_NEWNET)
            except OSError as error:
                raise KernelError(step, error.errno or 0) from error
            try:
                return function(*args, **kwargs)
            finally:
                _return_to(previous)
        finally:
            os.close(previous)

    try:
        return _in_thread(inside) if threading.get_native_id() == os.getpid() else inside()
    finally:
        if descriptor is not path:
            os.close(descriptor)


def new() -> int:
    """Create a network namespace. Returns an open file, which alone keeps the namespace alive. Raises OSError."""

    def create() -> int:
        if _libc.unshare(_CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "unshare")
        return os.open(_THREAD, os.O_RDONLY | os.O_CLOEXEC)

    return _in_thread(create)


def _return_to(previous: int) -> None:
    """Return to the thread's own namespace. This fails only without memory or privileges; then the process aborts."""
    try:
        _setns(previous, _CLONE_NEWNET)
    except OSError:
        log.critical("a thread cannot leave a pod's network namespace: the driver aborts and must be restarted")
        os.abort()


def _open(path: PathLike, step: str) -> int:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise KernelError(step, error.errno or 0) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise KernelError(step, errno.EINVAL)
    return descriptor


def _setns(descriptor: int, namespace_type: int) -> None:
    if _libc.setns(descriptor, namespace_type):
        raise OSError(ctypes.get_errno(), "setns")


def _in_mount_namespace(function: t.Callable[[], None], mounts: str | None, step: str) -> None:
    """Call `function` in the mount namespace `mounts`, from a new thread with an unshared root directory; directly if
    `mounts` is None or the process's own. Raises KernelError."""

    def inside() -> None:
        if _libc.unshare(_CLONE_FS):
            raise OSError(ctypes.get_errno(), "unshare")
        assert mounts is not None
        descriptor = os.open(mounts, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _setns(descriptor, _CLONE_NEWNS)
        finally:
            os.close(descriptor)
        function()

    try:
        if mounts is None or same(mounts, "/proc/self/ns/mnt"):
            function()
        else:
            _in_thread(inside)
    except OSError as error:
        raise KernelError(step, error.errno or 0) from error


def _in_thread(function: t.Callable[[], T]) -> T:
    """Call a function in a new thread, and return its result or raise its exception."""
    result: list[T] = []
    failure: list[BaseException] = []

    def work() -> None:
        try:
            result.append(function())
        except BaseException as error:  # noqa: BLE001  # raised again in the caller's thread
            failure.append(error)

    thread = threading.Thread(target=work, name="netns", daemon=True)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return result[0]
