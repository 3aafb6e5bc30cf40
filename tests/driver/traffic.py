# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""TCP traffic from network namespaces to an address of this one, and the bytes that arrive from each.

Run as a program, it reads JSON lines, each the list of the senders that are to send from now on, and writes a line for
each: the bytes that have arrived so far, by sender, and the time.

    python traffic.py ADDRESS NETWORK_NAMESPACE ...
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
import typing as t
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_CHUNK = bytes(1 << 18)
#: Bytes in the socket of a sender, which are still sent after it was stopped.
_WAITING_BYTES = 1 << 18
_NUMBER = struct.Struct("=Q")
#: Seconds until a rate must be reached, on a machine that does other work.
PATIENCE = 120.0


class Sample(t.NamedTuple):
    """The time in seconds, and the bytes that have arrived from each sender."""

    time: float
    bytes: list[int]


class Reached(t.NamedTuple):
    """Rates in Mbit/s, and after how many seconds the interval began in which they were measured."""

    rates: list[float]
    begun: float


class Traffic:
    """Senders in network namespaces, as a context manager. Nobody sends at first. `within` is a command that runs the
    receiver where its address is."""

    def __init__(self, address: str, namespaces: t.Sequence[Path], within: t.Sequence[str] = ()) -> None:
        command = [*within, sys.executable, __file__, address, *map(str, namespaces)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._sending: list[int] = []
        self.sample()

    def __enter__(self) -> Traffic:
        return self

    def __exit__(self, *_unused: object) -> None:
        self._process.kill()
        self._process.communicate()

    def send(self, *senders: int) -> None:
        """Only these send from now on."""
        self._sending = list(senders)
        self.sample()

    def sample(self) -> Sample:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(self._sending) + "\n")
        self._process.stdin.flush()
        return Sample(*json.loads(self._process.stdout.readline()))

    def rates(self, seconds: float) -> list[float]:
        """The rate that arrives from each sender, measured over this many seconds, in bit/s."""
        first = self.sample()
        time.sleep(seconds)
        last = self.sample()
        return [(b - a) * 8 / (last.time - first.time) for a, b in zip(first.bytes, last.bytes)]

    def reach(self, enough: t.Callable[[list[float]], bool], seconds: float = 0.5) -> Reached:
        """Measure the rates over this many seconds, repeatedly, until they are enough. Raises AssertionError after
        PATIENCE."""
        start = time.monotonic()
        while True:
            begun = time.monotonic() - start
            rates = [rate / 1e6 for rate in self.rates(seconds)]
            if enough(rates):
                return Reached(rates, begun)
            assert begun < PATIENCE, f"after {begun:.0f} s the rates are {rates} Mbit/s"

    @property
    def pid(self) -> int:
        return self._process.pid


def _socket_in(namespace: str, here: int) -> socket.socket:
    libc = ctypes.CDLL(None, use_errno=True)
    with open(namespace) as other:
        if libc.setns(other.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), namespace)
    try:
        return socket.socket()
    finally:
        if libc.setns(here, _CLONE_NEWNET):
            os._exit(1)


def _sink(listener: socket.socket, arrived: mmap.mmap) -> None:
    """Receive until killed."""
    numbers: dict[int, int] = {}
    buffer = bytearray(1 << 20)
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while True:
            for key, _events in selector.select():
                if key.fileobj is listener:
                    made = listener.accept()[0]
                    numbers[made.fileno()] = _NUMBER.unpack(made.recv(_NUMBER.size, socket.MSG_WAITALL))[0]
                    selector.register(made, selectors.EVENT_READ)
                    continue
                connection = t.cast(socket.socket, key.fileobj)
                place = numbers[connection.fileno()] * _NUMBER.size
                (before,) = _NUMBER.unpack_from(arrived, place)
                _NUMBER.pack_into(arrived, place, before + connection.recv_into(buffer))


def _senders(listener: socket.socket, namespaces: t.Sequence[str]) -> list[socket.socket]:
    found = []
    with open("/proc/self/ns/net") as here:
        for number, namespace in enumerate(namespaces):
            made = _socket_in(namespace, here.fileno())
            made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _WAITING_BYTES)
            made.settimeout(60)
            made.connect(listener.getsockname())
            made.sendall(_NUMBER.pack(number))
            made.setblocking(False)
            found.append(made)
    return found


def main(address: str, *namespaces: str) -> None:
    listener = socket.create_server((address, 0), backlog=len(namespaces) + 1)
    arrived = mmap.mmap(-1, max(1, len(namespaces)) * _NUMBER.size)
    sink = os.fork()
    if not sink:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        _sink(listener, arrived)
    senders = _senders(listener, namespaces)
    sending: set[int] = set()
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin, selectors.EVENT_READ)
        while True:
            for key, _events in selector.select():
                if key.fileobj is not sys.stdin:
                    with contextlib.suppress(BlockingIOError):
                        t.cast(socket.socket, key.fileobj).send(_CHUNK)
                    continue
                line = sys.stdin.readline()
                if not line:
                    return
                wanted = set(json.loads(line))
                for number in sending - wanted:
                    selector.unregister(senders[number])
                for number in wanted - sending:
                    selector.register(senders[number], selectors.EVENT_WRITE)
                sending = wanted
                places = range(0, len(namespaces) * _NUMBER.size, _NUMBER.size)
                now = [_NUMBER.unpack_from(arrived, place)[0] for place in places]
                print(json.dumps([time.monotonic(), now]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
