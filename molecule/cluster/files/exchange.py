# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Exchange data with the other pod of a job over each interface in the arguments, until this program is stopped.

The pod with index 1 finds index 0 by multicast and opens one connection, which stays open. The number of exchanges is
written to /tmp/INTERFACE. If a connection breaks, the pod ends with status 1.

Over an interface with an RDMA device, each pod also pings the other by RDMA repeatedly, and rping compares the replies.
The result is written to /tmp/INTERFACE.rdma.
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

INDEX = int(os.environ["JOB_COMPLETION_INDEX"])
DISCOVERY_PORT, DATA_PORT = 7001, 7002
EXCHANGE_BYTES, EXCHANGE_INTERVAL_SECONDS = 10_000, 5
PINGS_PER_RUN, RPING_INTERVAL_SECONDS = 10, 15


def listen(interface):
    """Answer discovery requests, and accept the connection. Runs in the pod with index 0."""
    server = socket.socket(socket.AF_INET6)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
    server.bind(("::", DATA_PORT))
    server.listen()
    requests = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    requests.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
    requests.bind(("::", DISCOVERY_PORT))

    def answer():
        while True:
            _request, address = requests.recvfrom(100)
            requests.sendto(b"here", address)

    threading.Thread(target=answer, daemon=True).start()
    return server.accept()


def connect(interface):
    """Send discovery requests to the link until the pod with index 0 answers, and connect to it."""
    request = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    request.settimeout(2)
    while True:
        try:
            request.sendto(b"who", ("ff02::1", DISCOVERY_PORT, 0, socket.if_nametoindex(interface)))
            _answer, address = request.recvfrom(100)
            break
        except OSError as error:  # the other pod does not run yet
            print(interface, error, flush=True)
            time.sleep(1)
    connection = socket.socket(socket.AF_INET6)
    connection.connect((address[0], DATA_PORT, 0, socket.if_nametoindex(interface)))
    return connection, address


def receive(connection, size):
    received = b""
    while len(received) < size:
        part = connection.recv(size - len(received))
        if not part:
            raise OSError("the other pod closed the connection")
        received += part
    return received


def write_result(name, **values):
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
    """Ping through the RDMA connection manager, which finds the devices. Each ping is a send, a read and a write."""
    command = ["rping", "-c", "-V", "-v", "-C", str(PINGS_PER_RUN), "-a", f"{address}%{interface}"]
    pings = 0
    while True:
        try:
            # rping fails until the other pod's server runs
            result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
            print(interface, "rping", result.returncode, result.stderr, flush=True)
            if result.returncode == 0:
                pings += result.stdout.count("ping data: ")
                write_result(f"{interface}.rdma", peer=address, pings=pings)
        except subprocess.TimeoutExpired as error:
            print(interface, error, flush=True)
        time.sleep(RPING_INTERVAL_SECONDS)


def start(function, *arguments):
    threading.Thread(target=run, args=(function, *arguments)).start()


def exchange(interface):
    connection, (address, *_rest) = connect(interface) if INDEX else listen(interface)
    connection.settimeout(600)
    address = address.partition("%")[0]
    if has_rdma(interface):
        local_address = connection.getsockname()[0].partition("%")[0]
        start(serve_pings, f"{local_address}%{interface}")
        start(ping, interface, address)
    for count in range(1, sys.maxsize):
        if INDEX:
            data = os.urandom(EXCHANGE_BYTES)
            connection.sendall(data)
            if receive(connection, 32) != hashlib.sha256(data).digest():
                raise OSError("the other pod received other data than was sent")
            time.sleep(EXCHANGE_INTERVAL_SECONDS)
        else:
            connection.sendall(hashlib.sha256(receive(connection, EXCHANGE_BYTES)).digest())
        write_result(interface, peer=address, port=connection.getsockname()[1], exchanged=count)


def run(function, *arguments):
    try:
        function(*arguments)
    except BaseException:  # noqa: BLE001  # any error in a thread ends the program
        traceback.print_exc()
        os._exit(1)


for name in sys.argv[1:]:
    start(exchange, name)
