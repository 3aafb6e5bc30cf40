# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Exchange data with the other pod of a job over each named interface, as long as this program runs.

The pod with number 1 finds number 0 by multicast, makes one connection and keeps it. What was exchanged is written
to /tmp/INTERFACE. A connection that breaks ends the pod with status 1.

Over an interface with an RDMA device each pod pings the other by RDMA, too, again and again, and has what comes back
compared. The result is written to /tmp/INTERFACE.rdma.
"""

import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
import traceback

NUMBER = int(os.environ["JOB_COMPLETION_INDEX"])
ASK, SERVE, SIZE, SECONDS = 7001, 7002, 10_000, 5
PINGS, PAUSE = 10, 15


def listen(interface):
    """Answer that this is number 0, and take the connection."""
    server = socket.socket(socket.AF_INET6)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
    server.bind(("::", SERVE))
    server.listen()
    asked = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    asked.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
    asked.bind(("::", ASK))

    def answer():
        while True:
            _question, address = asked.recvfrom(100)
            asked.sendto(b"here", address)

    threading.Thread(target=answer, daemon=True).start()
    return server.accept()


def find(interface):
    """Ask all on the link until number 0 answers, and connect to it."""
    question = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    question.settimeout(2)
    while True:
        try:
            question.sendto(b"who", ("ff02::1", ASK, 0, socket.if_nametoindex(interface)))
            _answer, address = question.recvfrom(100)
            break
        except OSError as error:  # as long as the other one is not there
            print(interface, error, flush=True)
            time.sleep(1)
    connection = socket.socket(socket.AF_INET6)
    connection.connect((address[0], SERVE, 0, socket.if_nametoindex(interface)))
    return connection, address


def take(connection, size):
    taken = b""
    while len(taken) < size:
        part = connection.recv(size - len(taken))
        if not part:
            raise OSError("the other side has gone")
        taken += part
    return taken


def tell(name, **values):
    with open(f"/tmp/{name}.new", "w") as file:
        json.dump(values, file)
    os.rename(f"/tmp/{name}.new", f"/tmp/{name}")


def has_rdma(interface):
    listed = subprocess.run(["rdma", "-j", "link"], check=True, capture_output=True, text=True).stdout
    return any(link.get("netdev") == interface for link in json.loads(listed))


def serve_pings(address):
    while True:
        subprocess.run(["rping", "-s", "-P", "-a", address], check=False)
        time.sleep(1)


def ping(interface, address):
    """By the connection manager, so that the devices find each other; each ping is a send, a read and a write."""
    command = ["rping", "-c", "-V", "-v", "-C", str(PINGS), "-a", f"{address}%{interface}"]
    pings = 0
    while True:
        try:
            # the other one may not serve yet
            done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
            print(interface, "rping", done.returncode, done.stderr, flush=True)
            if done.returncode == 0:
                pings += done.stdout.count("ping data: ")
                tell(f"{interface}.rdma", peer=address, pings=pings)
        except subprocess.TimeoutExpired as error:
            print(interface, error, flush=True)
        time.sleep(PAUSE)


def begin(function, *given):
    threading.Thread(target=run, args=(function, *given)).start()


def exchange(interface):
    connection, (address, *_rest) = find(interface) if NUMBER else listen(interface)
    connection.settimeout(600)
    address = address.partition("%")[0]
    if has_rdma(interface):
        own = connection.getsockname()[0].partition("%")[0]
        begin(serve_pings, f"{own}%{interface}")
        begin(ping, interface, address)
    for count in range(1, sys.maxsize):
        if NUMBER:
            data = os.urandom(SIZE)
            connection.sendall(data)
            if take(connection, 32) != hashlib.sha256(data).digest():
                raise OSError("other data came than was sent")
            time.sleep(SECONDS)
        else:
            connection.sendall(hashlib.sha256(take(connection, SIZE)).digest())
        tell(interface, peer=address, port=connection.getsockname()[1], exchanged=count)


def run(function, *given):
    try:
        function(*given)
    except BaseException:  # noqa: BLE001  # whatever ends a thread ends the program
        traceback.print_exc()
        os._exit(1)


for name in sys.argv[1:]:
    begin(exchange, name)
