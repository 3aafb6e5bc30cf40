# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The createRuntime hook: asks the driver to attach a claim's devices to the container that is about to start.

A program of its own: C(python -I -S hook.py SOCKET CLAIM-UID SECONDS), the container's OCI state on standard input.
hook.sh runs it, but where all is attached already; C(-I -S) keeps it off the caller's environment and off installed
packages.
It opens the container's network namespace and hands it to the driver together with the state.
Where the driver restarts, or something has to end first, it asks again, up to SECONDS. Exit status 0: devices are
attached. Otherwise the container does not start, and the one line on standard error stands in the pod's event.
Where the driver has said that the claim's devices are in this very namespace, nothing is to be asked: a container that
starts again, or a second one of the pod, needs no driver.
Each start of a container waits for it, so it loads nothing: json and socket would take longer than all else here.
The node's own Python may run it, from 3.6 on: annotations are evaluated there, and before 3.10 a socket's timeout is no
TimeoutError.
"""

import os
import sys
import time

try:
    import _socket as socket  # what socket is made of; all that is used here is the same in both
except ImportError:
    import socket  # type: ignore[no-redef]

#: Seconds between two tries: the driver's restart is a matter of seconds, a busy device's of less.
_PAUSE = 0.2
_DIGITS = b"0123456789"


class Failure(Exception):
    """The reason not to start the container."""


class Again(Exception):
    """The reason to ask again."""


class Told(Again):
    """The reason to ask again, in the driver's own words."""


def main(arguments: "list[str]", state: bytes) -> int:
    """Do the work; returns the exit status."""
    try:
        path, uid, seconds = arguments
        deadline = time.monotonic() + float(seconds)
    except ValueError:
        return _fail("usage: hook.py SOCKET CLAIM-UID SECONDS")
    try:
        attach(path, uid, deadline, state)
    except Failure as failure:
        return _fail(str(failure))
    except Again as reason:
        return _fail(f"gave up after {seconds} seconds: {reason}")
    return 0


def attach(path: str, uid: str, deadline: float, state: bytes) -> None:
    """Ask until the driver has attached the devices. Raises Failure, and Again with the last reason."""
    pid = process(state)
    if pid == 0:
        raise Failure("the container runtime named no process of the container")
    try:
        netns = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise Failure(f"the container's process {pid}: {error.strerror}") from None
    if attached(os.path.dirname(path), uid, netns):
        _came(os.path.dirname(path), uid)
        return
    request = f"{uid} {pid}\n".encode() + state
    unfinished = Again("the driver has not finished")
    while True:
        try:
            return ask(path, request, netns, deadline)
        except socket.timeout:
            raise unfinished from None
        except Again as reason:
            if time.monotonic() + _PAUSE >= deadline:
                raise
            if isinstance(reason, Told):
                unfinished = reason  # says more than that the time was over in the middle of a try
        time.sleep(_PAUSE)


def _came(folder: str, uid: str) -> None:
    """Note that a container has come for a claim that was attached before (Paths.early)."""
    try:
        note = os.open(f"{folder}/early/{uid}", os.O_WRONLY | os.O_CLOEXEC)
        os.write(note, b"came\n")
        os.close(note)
    except OSError:
        pass  # it was attached when its container asked, or it cannot be noted: the devices are there


def attached(folder: str, uid: str, netns: int) -> bool:
    """Whether the claim's devices are in the container's namespace, set up: the driver's word is there (Paths.attached,
    which it takes back before it touches a device), and the namespace that it has pinned for the claim is this one. A
    pin keeps its namespace, so no other one can have the same numbers."""
    try:
        os.stat(f"{folder}/attached/{uid}")
        pin = os.stat(f"{folder}/netns/{uid}")
    except OSError:
        return False
    own = os.fstat(netns)
    return (pin.st_dev, pin.st_ino) == (own.st_dev, own.st_ino)


def process(state: bytes) -> int:
    """The process id in an OCI state, 0 where there is none.

    Nothing else of that name has a number, as annotations are texts, and a quotation mark within a text is escaped. The
    driver reads the state as JSON and refuses one that says otherwise.
    """
    for rest in state.split(b'"pid"')[1:]:
        colon, value = rest.lstrip()[:1], rest.lstrip()[1:].lstrip()
        digits = value[: len(value) - len(value.lstrip(_DIGITS))]
        if colon == b":" and digits:
            return int(digits)
    return 0


def ask(path: str, request: bytes, netns: int, deadline: float) -> None:
    """Ask once. Raises Failure where the driver refuses, Again where it cannot do it now, socket.timeout at the end."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(max(0.01, deadline - time.monotonic()))
        connection.connect(path)
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, netns.to_bytes(4, sys.byteorder))
        connection.sendall(request[connection.sendmsg([request], [rights]) :])
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while not answer.endswith(b"\n"):
            connection.settimeout(max(0.01, deadline - time.monotonic()))
            part = connection.recv(65536)
            if not part:
                raise Again("the driver ended while it worked")
            answer += part
    except socket.timeout:
        raise
    except OSError as error:
        raise Again(f"no driver at {path}: {error.strerror or error}") from None
    finally:
        connection.close()
    verdict, _unused, reason = answer.decode("utf-8", "replace").partition(" ")
    if verdict == "again":
        raise Told(reason)
    if verdict.strip() != "done":
        raise Failure(reason if verdict == "refused" else "the driver gave an answer that this hook does not know")


def _fail(reason: str) -> int:
    # one line: it becomes part of an event's message
    sys.stderr.write(f"lanewise.dev: {' '.join(reason.split())}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], sys.stdin.buffer.read()))
