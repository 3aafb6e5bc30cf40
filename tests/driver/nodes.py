# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Nodes and pods for tests with the kernel. A node is a child process in new network and mount namespaces, with veth
interfaces. Pods are further network namespaces."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import socket
import subprocess
import sys
import threading
import traceback
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.driver import ipv6
from lanewise_driver.interface import interfaces
from lanewise_driver.interface.host_state import HostState
from lanewise_driver.interface.interfaces import Identity
from lanewise_driver.kernel import netns

_CLONE_NEWNS, _CLONE_NEWNET = 0x00020000, 0x40000000
_MS_PRIVATE, _MS_REC = 1 << 18, 16384
_SKIPPED = 77
_MOUNTS = "/proc/self/ns/mnt"
_libc = ctypes.CDLL(None, use_errno=True)
#: The mount namespace of the machine that runs the tests.
_OF_THE_MACHINE = os.readlink(_MOUNTS)
#: The interface `one`, which `node` creates.
ONE = Identity(None, None, "one")


def on_a_node(function: t.Callable[..., None]) -> t.Callable[..., None]:
    """Run a test in a forked process with new network and mount namespaces. Skips the test without the privileges."""

    @functools.wraps(function)
    def test(*args: t.Any, **kwargs: t.Any) -> None:
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            status = 1
            try:
                os.close(reader)
                with os.fdopen(writer, "w") as report:
                    try:
                        _enter_namespaces()
                        function(*args, **kwargs)
                        status = 0
                    except pytest.skip.Exception as reason:
                        report.write(str(reason))
                        status = _SKIPPED
                    except BaseException:  # noqa: BLE001  # a forked process never returns to pytest
                        report.write(traceback.format_exc())
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        os.close(writer)
        with os.fdopen(reader) as reported_by_child:
            text = reported_by_child.read()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == _SKIPPED:
            pytest.skip(text)
        assert status == 0, text or f"the node's process ended with {status}"

    return test


def _enter_namespaces() -> None:
    if _libc.unshare(_CLONE_NEWNS | _CLONE_NEWNET):
        pytest.skip(f"needs to make network namespaces: {os.strerror(ctypes.get_errno())}")
    if _libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None):
        pytest.skip("needs to make mount namespaces")
    run("mount -t sysfs sys /sys")  # a sysfs shows the interfaces of the namespace that mounted it
    run("mount -t tmpfs run /run")
    run("ip link set lo up")


def run(command: str, check: bool = True, text: str | None = None) -> str:
    """Run a shell command on the node. Returns its output. Refuses to run it on the machine that runs the tests."""
    assert os.readlink(_MOUNTS) != _OF_THE_MACHINE, f"a test without @on_a_node would run on this machine: {command}"
    done = subprocess.run(
        ["sh", "-c", command], input=text, capture_output=True, text=True, errors="surrogateescape", check=False
    )
    assert not check or done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def _run_in(netns_file: str, command: str, check: bool) -> str:
    """Run a shell command in a network namespace. Returns its output."""
    done = subprocess.run(
        ["nsenter", f"--net={netns_file}", "sh", "-c", command], capture_output=True, text=True, check=False
    )
    assert not check or done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def without_dad() -> None:
    """Disable duplicate address detection, which takes seconds, for new interfaces."""
    run("sysctl -qw net.ipv6.conf.default.accept_dad=0")


def wait_for_ipv6() -> None:
    """Wait until the kernel has accepted the IPv6 addresses of the node and created their routes."""
    ipv6.wait(lambda words: run(f"ip {words}"))


class Pod:
    """A network namespace without processes, which a pin (a bind mount) keeps."""

    def __init__(self, name: str = "pod") -> None:
        self.pin = Path("/run/lanewise/netns") / name

        def make() -> None:
            if _libc.unshare(_CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "unshare")
            netns.pin(f"/proc/{os.getpid()}/task/{threading.get_native_id()}/ns/net", self.pin)

        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        assert netns.alive(self.pin)

    def run(self, command: str, check: bool = True) -> str:
        return _run_in(str(self.pin), command, check)

    def end(self) -> None:
        """Remove the pin. The kernel destroys the namespace some time later."""
        netns.unpin(self.pin)

    def __enter__(self) -> Pod:
        return self

    def __exit__(self, *_unused: object) -> None:
        self.end()


class HiddenNamespace:
    """A network namespace that only a descriptor keeps. With `passed`, `hide` sends the descriptor through a Unix
    socket that nobody reads, so that no process has it open."""

    def __init__(self, passed: bool = False) -> None:
        self.descriptor = netns.new()
        self.passed = passed
        self.sockets = socket.socketpair()

    def hide(self) -> None:
        """With `passed`, remove the last path of the namespace in /proc."""
        if self.passed:
            socket.send_fds(self.sockets[0], [b"x"], [self.descriptor])
            os.close(self.descriptor)

    def show(self) -> None:
        """Undo `hide`."""
        if self.passed:
            _data, (self.descriptor,), _flags, _address = socket.recv_fds(self.sockets[1], 1, 1)
            self.passed = False

    def run(self, command: str, check: bool = True) -> str:
        return _run_in(self.path(), command, check)

    def path(self) -> str:
        return f"/proc/{os.getpid()}/fd/{self.descriptor}"

    def end(self) -> None:
        self.show()
        os.close(self.descriptor)


@contextlib.contextmanager
def busy() -> t.Iterator[None]:
    """Keep all processors of the machine busy."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _each in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def pair(name: str, peer: str = "", up: bool = True) -> None:
    """Create a veth interface of the node. Its peer, NAME-far by default, stands for the network."""
    peer = peer or f"{name}-far"
    mac = f"02:00:00:00:00:{len(name):02x}"
    run(f"ip link add {name} address {mac} type veth peer name {peer}")
    run(f"echo 1 > /proc/sys/net/ipv6/conf/{peer}/disable_ipv6; ip link set {peer} up")
    if up:
        run(f"ip link set {name} up")


#: The commands that show the state of an interface.
_COMMANDS = {
    "link": "ip -d -o link show dev {0}",
    "addresses": "ip -d -o addr show dev {0} | sed 's/^[0-9]*//'",
    "routes": "{{ ip -d -4 route show table all; ip -d -6 route show table all; }} | sort",
    "rules": "ip -d -4 rule; ip -d -6 rule",
    "neighbors": "{{ ip neigh show dev {0} nud permanent; ip neigh show proxy dev {0}; }} | sort",
    "sysctls": "cd /proc/sys/net; grep -rs . ipv4/conf/{0} ipv6/conf/{0} ipv4/neigh/{0} ipv6/neigh/{0} | sort",
    "qdiscs": "tc qdisc show dev {0} | grep -v -e noop -e noqueue",
    "features": "ethtool -k {0}",
}


def shown(name: str) -> dict[str, str]:
    """The state of an interface of the node as iproute2 and /proc show it, without indexes, for comparison."""
    script = "printf '\\0'\n".join(f"{command.format(name)}\n" for command in _COMMANDS.values())
    found = dict(zip(_COMMANDS, run(script, check=False).split("\0"), strict=True))
    assert found["link"], f"there is no {name}"
    # the qdisc is noop until the interface is up for the first time
    return {**found, "link": found["link"].split(":", 1)[1].replace(" qdisc noop ", " qdisc noqueue ")}


def node(*commands: str) -> HostState:
    """Create the interface `one` and run commands, which may need addresses of the previous ones. Returns the state of
    `one` on the node."""
    without_dad()
    pair("one")
    wait_for_ipv6()
    for command in commands:
        run(command)
        wait_for_ipv6()
    return interfaces.snapshot(ONE)
