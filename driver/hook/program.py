# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The createRuntime hook: asks the driver to attach a claim's devices to the container that is about to start.

It is a separate program, which the driver installs as hook.py: `python -I -S hook.py SOCKET CLAIM-UID SECONDS`, with
the container's OCI state on standard input. hook.sh runs it unless the devices are already attached. With `-I -S`,
Python ignores the caller's environment and installed packages.

The hook opens the container's network namespace and sends the file descriptor and the state to the driver. If the
driver restarts or is busy, the hook repeats the request for up to SECONDS. Exit status 0: the devices are attached.
Otherwise the container does not start, and the one line on standard error becomes part of the pod's event.

If the driver has recorded that the claim's devices are in this namespace, no request is sent: a container that
restarts, or a second container of the pod, does not need the driver.

Every container start waits for this program, so it imports almost nothing: json and socket would take longer than all
the rest. It must run on the node's own Python from 3.6 on. That version evaluates annotations, so they are quoted; and
before 3.10, socket.timeout is not TimeoutError.
"""

import os
import sys
import time

try:
    import _socket as socket  # the base of socket; both have everything that is used here
except ImportError:
    import socket  # type: ignore[no-redef]

#: Seconds between two attempts: a restart of the driver takes seconds, and a busy device is often free sooner.
_RETRY_SECONDS = 0.2
_DIGITS = b"0123456789"


class Failure(Exception):
    """The container must not start, for the reason in the message."""


class Retry(Exception):
    """The devices are not attached yet: repeat the request. The message is the reason."""


class DriverBusy(Retry):
    """A retry that the driver requested."""


def main(arguments: "list[str]", state: bytes) -> int:
    """Run the hook. Returns the exit status."""
    try:
        path, uid, seconds = arguments
        deadline = time.monotonic() + float(seconds)
    except ValueError:
        return _fail("usage: hook.py SOCKET CLAIM-UID SECONDS")
    try:
        attach(path, uid, deadline, state)
    except Failure as failure:
        return _fail(str(failure))
    except Retry as reason:
        return _fail(f"gave up after {seconds} seconds: {reason}")
    return 0


def attach(path: str, uid: str, deadline: float, state: bytes) -> None:
    """Repeat the request until the driver has attached the devices. Raises Failure, or Retry with the last reason at
    `deadline` (monotonic)."""
    pid = process_id(state)
    if pid == 0:
        raise Failure("the container runtime did not pass the container's process id")
    try:
        netns = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise Failure(f"could not open the network namespace of process {pid}: {error.strerror}") from None
    if is_attached(os.path.dirname(path), uid, netns):
        _mark_started(os.path.dirname(path), uid)
        return
    request = f"{uid} {pid}\n".encode() + state
    unfinished = Retry("the driver has not finished")
    while True:
        try:
            return request_attach(path, request, netns, deadline)
        except socket.timeout:
            raise unfinished from None
        except Retry as reason:
            if time.monotonic() + _RETRY_SECONDS >= deadline:
                raise
            if isinstance(reason, DriverBusy):
                unfinished = reason  # more helpful than a timeout of the last attempt
        time.sleep(_RETRY_SECONDS)


def _mark_started(folder: str, uid: str) -> None:
    """Record that a container has started, if the claim was attached early (Paths.early_marker)."""
    try:
        marker = os.open(f"{folder}/early/{uid}", os.O_WRONLY | os.O_CLOEXEC)
        os.write(marker, b"started\n")
        os.close(marker)
    except OSError:
        pass  # the claim was not attached early, or the marker cannot be written: the devices are attached anyway


def is_attached(folder: str, uid: str, netns: int) -> bool:
    """Whether the claim's devices are configured in the container's network namespace.

    Two conditions: the driver's marker exists (Paths.attached_marker, which the driver removes before it changes a
    device), and the namespace that the driver has pinned for the claim is this one. The pin keeps that namespace alive,
    so no other namespace can have the same device and inode.
    """
    try:
        os.stat(f"{folder}/attached/{uid}")
        pin = os.stat(f"{folder}/netns/{uid}")
    except OSError:
        return False
    namespace = os.fstat(netns)
    return (pin.st_dev, pin.st_ino) == (namespace.st_dev, namespace.st_ino)


def process_id(state: bytes) -> int:
    """The process ID in an OCI state; 0 if there is none.

    No other key named "pid" has a number as its value: annotations are strings, and a quotation mark in a string is
    escaped. The driver parses the state as JSON, and refuses the request if the two numbers differ.
    """
    for rest in state.split(b'"pid"')[1:]:
        colon, value = rest.lstrip()[:1], rest.lstrip()[1:].lstrip()
        digits = value[: len(value) - len(value.lstrip(_DIGITS))]
        if colon == b":" and digits:
            return int(digits)
    return 0


def request_attach(path: str, request: bytes, netns: int, deadline: float) -> None:
    """Send one request. Raises Failure if the driver refuses the request, Retry if it cannot attach the devices now,
    and socket.timeout at `deadline`."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(max(0.01, deadline - time.monotonic()))
        connection.connect(path)
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, netns.to_bytes(4, sys.byteorder))
        connection.sendall(request[connection.sendmsg([request], [rights]) :])
        connection.shutdown(socket.SHUT_WR)
        response = b""
        while not response.endswith(b"\n"):
            connection.settimeout(max(0.01, deadline - time.monotonic()))
            part = connection.recv(65536)
            if not part:
                raise Retry("the driver stopped before it had finished")
            response += part
    except socket.timeout:
        raise
    except OSError as error:
        raise Retry(f"the driver does not answer at {path}: {error.strerror or error}") from None
    finally:
        connection.close()
    verdict, _unused, reason = response.decode("utf-8", "replace").partition(" ")
    if verdict == "again":
        raise DriverBusy(reason)
    if verdict.strip() != "done":
        raise Failure(reason if verdict == "refused" else "the driver sent a response that this hook does not support")


def _fail(reason: str) -> int:
    # one line: it becomes part of an event's message
    sys.stderr.write(f"lanewise.dev: {' '.join(reason.split())}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], sys.stdin.buffer.read()))
