# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""TCP traffic from network namespaces to an address of this network namespace, and the bytes that arrive from each.

    python traffic.py ADDRESS NETWORK_NAMESPACE ...

The program has a sender in each of the namespaces. It reads lines from standard input: each is a JSON list of the
numbers of the senders that send from now on. For each it prints the time and the bytes that have arrived so far from
each sender.
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
#: The size of a sender's socket buffer. These bytes are still sent after the sender has stopped.
_BUFFER_BYTES = 1 << 18
#: A byte count or the number of a sender.
_UINT64 = struct.Struct("=Q")
#: Seconds within which rates must be reached. Much, because the machine may be busy.
PATIENCE = 120.0


class Sample(t.NamedTuple):
    """The time in seconds, and the bytes that have arrived from each sender."""

    time: float
    bytes: list[int]


class Reached(t.NamedTuple):
    """Rates in Mbit/s, and how many seconds after the call the interval began in which they were measured."""

    rates: list[float]
    delay: float


class Traffic:
    """Senders in network namespaces, as a context manager. None of them sends at first. `prefix` is put before the
    command of the program, for example to run it in the namespace with the address."""

    def __init__(self, address: str, namespaces: t.Sequence[Path], prefix: t.Sequence[str] = ()) -> None:
        command = [*prefix, sys.executable, __file__, address, *map(str, namespaces)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._sending: list[int] = []
        self.sample()

    def __enter__(self) -> Traffic:
        return self

    def __exit__(self, *_unused: object) -> None:
        self._process.kill()
        self._process.communicate()

    def send(self, *senders: int) -> None:
        """Let only these senders send from now on."""
        self._sending = list(senders)
        self.sample()

    def sample(self) -> Sample:
        """The bytes that have arrived until now."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(self._sending) + "\n")
        self._process.stdin.flush()
        return Sample(*json.loads(self._process.stdout.readline()))

    def rates(self, seconds: float) -> list[float]:
        """The rate that arrives from each sender, measured over this many seconds, in bit/s."""
        first = self.sample()
        time.sleep(seconds)
        last = self.sample()
        return [(after - before) * 8 / (last.time - first.time) for before, after in zip(first.bytes, last.bytes)]

    def reach(self, enough: t.Callable[[list[float]], bool], seconds: float = 0.5) -> Reached:
        """Measure the rates over this many seconds, repeatedly, until they are enough. Raises AssertionError after
        PATIENCE seconds."""
        start = time.monotonic()
        while True:
            delay = time.monotonic() - start
            rates = [rate / 1e6 for rate in self.rates(seconds)]
            if enough(rates):
                return Reached(rates, delay)
            assert delay < PATIENCE, f"after {delay:.0f} s the rates are {rates} Mbit/s"

    @property
    def pid(self) -> int:
        return self._process.pid


def _open_socket(namespace: str, own_namespace: int) -> socket.socket:
    """Open a socket in another network namespace. `own_namespace` is a descriptor of the program's own namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(namespace) as file:
        if libc.setns(file.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), namespace)
    try:
        return socket.socket()
    finally:
        if libc.setns(own_namespace, _CLONE_NEWNET):
            os._exit(1)


def _receive(listener: socket.socket, arrived: mmap.mmap) -> None:
    """Receive until killed, and count the bytes of each sender in `arrived`."""
    numbers: dict[int, int] = {}
    buffer = bytearray(1 << 20)
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while True:
            for key, _events in selector.select():
                if key.fileobj is listener:
                    accepted = listener.accept()[0]
                    numbers[accepted.fileno()] = _UINT64.unpack(accepted.recv(_UINT64.size, socket.MSG_WAITALL))[0]
                    selector.register(accepted, selectors.EVENT_READ)
                    continue
                connection = t.cast(socket.socket, key.fileobj)
                offset = numbers[connection.fileno()] * _UINT64.size
                (before,) = _UINT64.unpack_from(arrived, offset)
                _UINT64.pack_into(arrived, offset, before + connection.recv_into(buffer))


def _connect_senders(listener: socket.socket, namespaces: t.Sequence[str]) -> list[socket.socket]:
    """Connect a socket in each namespace to the listener. Each first sends its number."""
    senders = []
    with open("/proc/self/ns/net") as own_namespace:
        for number, namespace in enumerate(namespaces):
            sender = _open_socket(namespace, own_namespace.fileno())
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
            sender.settimeout(60)
            sender.connect(listener.getsockname())
            sender.sendall(_UINT64.pack(number))
            sender.setblocking(False)
            senders.append(sender)
    return senders


def main(address: str, *namespaces: str) -> None:
    listener = socket.create_server((address, 0), backlog=len(namespaces) + 1)
    arrived = mmap.mmap(-1, max(1, len(namespaces)) * _UINT64.size)
    receiver = os.fork()
    if not receiver:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        _receive(listener, arrived)
    senders = _connect_senders(listener, namespaces)
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
                offsets = range(0, len(namespaces) * _UINT64.size, _UINT64.size)
                counts = [_UINT64.unpack_from(arrived, offset)[0] for offset in offsets]
                print(json.dumps([time.monotonic(), counts]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
