# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A separate node for the driver's publisher: a network namespace with its own /sys.

As a program (under `unshare --net --mount`), this file is the node: it publishes according to the settings file until
its standard input ends. As a module, it starts a node and forwards its connections to the API server, which is in
another network namespace.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import typing as t
from pathlib import Path

PORT = 6443  # of the API server, as the node sees it


class Node:
    """A node whose driver publishes until `close()`. Raises OSError if namespaces cannot be created.

    `root` is the file system root that it probes: `/`, or an example machine's.
    """

    def __init__(
        self, port: int, folder: Path, token: str, authority: Path, name: str, settings: str, root: str = "/"
    ) -> None:
        self._port = port
        self.settings = folder / "driver.yml"
        self.settings.write_text(settings)
        token_file = folder / "token"
        token_file.write_text(token)
        kubeconfig = folder / "kubeconfig"
        cluster = {"server": f"https://127.0.0.1:{PORT}", "certificate-authority": str(authority)}
        content = {
            "current-context": "node",
            "contexts": [{"name": "node", "context": {"cluster": "node", "user": "node"}}],
            "clusters": [{"name": "node", "cluster": cluster}],
        }
        kubeconfig.write_text(json.dumps(content))
        parent_end, child_end = socket.socketpair()
        config = {
            "name": name,
            "settings": str(self.settings),
            "kubeconfig": str(kubeconfig),
            "token": str(token_file),
            "root": root,
            "channel": child_end.fileno(),
        }
        command = ["unshare", "--net", "--mount", sys.executable, __file__, json.dumps(config)]
        self.log = folder / "driver.log"
        with open(self.log, "w") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stderr=log, text=True, pass_fds=[child_end.fileno()]
            )
        child_end.close()
        parent_end.settimeout(30)
        _data, descriptors, _flags, _address = socket.recv_fds(parent_end, 1, 1)
        parent_end.close()
        if not descriptors:
            self.close()
            raise OSError(f"the node did not start: {self.log.read_text()}")
        self._listener = socket.socket(fileno=descriptors[0])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        """The listening socket is in the node's namespace. Its connections are forwarded to the test's API server."""
        with contextlib.suppress(OSError):
            while True:
                near, _address = self._listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self._port), 5)
                except OSError:
                    near.close()
                    continue
                far.settimeout(None)
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=_pump, args=(source, target), daemon=True).start()

    def ip(self, *command: str) -> None:
        """Run ip(8) in the node."""
        self.run("ip", *command)

    def run(self, *command: str) -> str:
        """Run a program in the node's namespaces."""
        enter = ["nsenter", "-t", str(self._process.pid), "-n", "-m", *command]
        return subprocess.run(enter, check=True, capture_output=True, text=True).stdout

    def pid(self) -> int:
        return self._process.pid

    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if hasattr(self, "_listener"):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept()
            self._listener.close()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for entry in (source, target):
        with contextlib.suppress(OSError):
            entry.shutdown(socket.SHUT_RDWR)


def main(config: dict[str, t.Any]) -> None:
    import logging

    from lanewise_driver.api.access import from_kubeconfig
    from lanewise_driver.api.cluster import Cluster
    from lanewise_driver.base.settings import SettingsFile
    from lanewise_driver.publish.inventory import Inventory
    from lanewise_driver.publish.publisher import Publisher

    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "-t", "sysfs", "sysfs", "/sys"], check=True)  # that of the new network namespace
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    listener = socket.create_server(("127.0.0.1", PORT))
    with socket.socket(fileno=config["channel"]) as channel:
        socket.send_fds(channel, [b"x"], [listener.fileno()])
    listener.close()

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    settings = SettingsFile(Path(config["settings"]))
    kubeconfig, token = Path(config["kubeconfig"]), Path(config["token"])
    cluster = Cluster(lambda: from_kubeconfig(kubeconfig, token), "lanewise.dev", config["name"])
    publisher = Publisher(cluster, Inventory(lambda: settings.current, lambda: (), config["root"]), settings)
    publisher.start()
    sys.stdin.read()
    publisher.stop()
    os._exit(0)  # without waiting for the thread of the watch


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
