# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The annotation of a Node that records which run has cordoned it, and whether that run is still running."""

from __future__ import annotations

import getpass
import hmac
import json
import multiprocessing
import os
import socket
import subprocess
from dataclasses import asdict, dataclass, fields

from ..module_utils.topology.stored import Formats, NewerFormat

#: The state of the run that has cordoned a Node: there is none, it is this run, it has ended or was interrupted, it is
#: still running, or this controller cannot determine its state.
NOBODY, OURS, ENDED, RUNS, UNKNOWN = "nobody", "ours", "ended", "runs", "unknown"
_MAX_LENGTH, _MAX_ANNOTATION = 200, 1000  # of a text of an owner, and of the whole annotation, in characters
_ZOMBIE = "ended"
#: The first release that recorded a run wrote no format number. The release before it wrote only the word true.
_FORMATS = Formats(unnumbered=1)


@dataclass(frozen=True)
class Owner:
    """A run of ansible-playbook: who started it, on which controller, and its process.

    `started` distinguishes a process from a later one with the same number. `space` is the machine and the PID
    namespace, for example of a container. Only a run in the same namespace can check whether the process exists.
    """

    user: str
    controller: str
    process: int
    started: str
    space: str

    @property
    def name(self) -> str:
        return f"{self.user}@{self.controller}, process {self.process}"

    @property
    def text(self) -> str:
        return json.dumps(_FORMATS.write(asdict(self)), sort_keys=True)


def this_run() -> Owner:
    """The current run. The caller may be one of Ansible's worker processes."""
    parent = multiprocessing.parent_process()
    process = parent.pid if parent is not None and parent.pid else os.getpid()
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in a container
        user = str(os.getuid())
    return Owner(user, socket.gethostname(), process, _started(process) or "", _space())


def state(text: str | None, this: Owner) -> str:
    """The state of the run that wrote the annotation `text`.

    An annotation that names no run, of an earlier release or invalid, counts as ended; that of a newer release, and one
    that is too long, is UNKNOWN.
    """
    if text is None:
        return NOBODY
    if len(text) > _MAX_ANNOTATION:
        return UNKNOWN
    try:
        owner = _parsed(text)
    except NewerFormat:
        return UNKNOWN
    if owner is None:
        return ENDED
    if owner == this:
        return OURS
    if (owner.controller, owner.space) != (this.controller, this.space):
        return UNKNOWN
    started = _started(owner.process)
    if started == _ZOMBIE:
        return ENDED
    if (started is None or not owner.started) and _exists(owner.process):
        return UNKNOWN
    return RUNS if started == owner.started else ENDED


def parse(text: str) -> Owner | None:
    """The run that an annotation names; None if it names no run, or if only a newer release can read it."""
    try:
        return _parsed(text)
    except NewerFormat:
        return None


def _parsed(text: str) -> Owner | None:
    """As `parse`, but raises NewerFormat. The text is not trusted, because a node can write it."""
    if len(text) > _MAX_ANNOTATION:
        return None
    try:
        stored = _FORMATS.read(json.loads(text))
        values = {field.name: stored[field.name] for field in fields(Owner)}
    except NewerFormat:
        raise
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    text_values = [value for name, value in values.items() if name != "process"]
    valid = all(isinstance(value, str) and len(value) <= _MAX_LENGTH and value.isprintable() for value in text_values)
    process = values["process"]
    if not valid or not isinstance(process, int) or isinstance(process, bool) or not 0 < process < 2**31:
        return None
    return Owner(**values)


def _space() -> str:
    """The machine and the PID namespace of this process; empty if there are no such namespaces. The first namespace has
    the same number on every machine (PROC_PID_INIT_INO in linux/proc_ns.h)."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:  # not Linux
        return ""
    for path in ("/etc/machine-id", "/proc/sys/kernel/random/boot_id"):
        try:
            with open(path, encoding="ascii") as file:
                machine = file.read(100).strip()
        except (OSError, ValueError):
            continue
        if machine:
            # the annotation is public, and machine-id(5) asks that programs publish only a keyed hash of it
            return f"{hmac.new(machine.encode(), b'lanewise.dra', 'sha256').hexdigest()[:32]} {namespace}"
    return namespace


def _exists(process: int) -> bool:
    """Whether there is such a process, even one that /proc hides from this user (the mount option hidepid)."""
    try:
        os.kill(process, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def _started(process: int) -> str | None:
    """The start time of a process in the notation of the operating system. None if no such process is visible; _ZOMBIE
    if it has ended, but its parent has not waited for it."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
            values = file.read().rpartition(")")[2].split()
        return _ZOMBIE if values[0] in ("Z", "X") else values[19]
    except OSError:
        if os.path.exists("/proc/self/stat"):
            return None
    return _start_by_ps(process)


def _start_by_ps(process: int) -> str | None:
    """As `_started`, from ps. Users may have other languages and time zones, so both are set."""
    argv = ["ps", "-o", "lstart=", "-p", str(process)]
    variables = {**os.environ, "LC_ALL": "C", "TZ": "UTC"}
    try:
        answer = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=10, env=variables)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None
