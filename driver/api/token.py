# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The service account token of a driver that runs outside of pods: bound to the Node, and renewed by itself.

A token is bound to the Node object by its name and UID and ends with it. Its own claims say for which account and node
it is, so there is nothing to set but where it lies.
"""

from __future__ import annotations

import base64
import logging
import random
import threading
import time
import typing as t
from dataclasses import dataclass
from pathlib import Path

from ..base import files
from ..base.errors import DriverError
from ..dra.kube.bounded_json import loads
from .cluster import AccessError, ApiError, Cluster

_LOG = logging.getLogger(__name__)
_MODE = 0o600
#: What is asked for, the longest first: the policy of a release before this one allows a day. The server may give less.
_SECONDS = (7 * 24 * 3600, 24 * 3600)
_LIFE = 0.5  # of a token, after which it is renewed
_FIRST_DELAY, _MOST_DELAY = 5.0, 300.0
_STOP_SECONDS = 3.0
_LONGEST_SLEEP = 3600.0  # the clock may jump, and somebody may put another token there


@dataclass(frozen=True)
class Token:
    """What a token says of itself; times are seconds since the epoch. C(node) is empty where it is not bound to one."""

    namespace: str
    account: str
    node: str
    node_uid: str
    issued: float
    expires: float

    def due(self) -> float:
        """When it is to be renewed."""
        return self.issued + (self.expires - self.issued) * _LIFE


def read(text: str) -> Token:
    """The claims of a service account's token, unverified. Raises AccessError for what is none."""
    try:
        body = text.strip().split(".")[1]
        claims = loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        own = claims["kubernetes.io"]
        token = Token(
            namespace=own["namespace"],
            account=own["serviceaccount"]["name"],
            node=own.get("node", {}).get("name", ""),
            node_uid=own.get("node", {}).get("uid", ""),
            issued=float(claims["iat"]),
            expires=float(claims["exp"]),
        )
        if token.issued <= token.expires:  # NaN, which JSON has here, is neither
            return token
        raise ValueError("it ends before it begins")
    except (IndexError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise AccessError(f"the token is none of a service account: {error!r}") from error


def _refused(token: Token, error: ApiError) -> str:
    """Why the server does not know the token any more, and what to do."""
    fix = f"Get a new one: ansible-playbook lanewise.dra.driver --limit {token.node} (on the controller)"
    if token.expires > time.time():
        return f"the API server refuses the token: {error.message}. Was the Node made anew? {fix}"
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(token.expires))
    return f"the token has expired on {when}, while the node was off or could not reach the API server. {fix}"


class Renewal:
    """Keeps the token in a file fresh, in a thread.

    Half of a token's life is left when it is renewed, so an API server that is away for hours does no harm. The file is
    replaced as a whole; C(cluster) reads it anew by itself.
    """

    def __init__(self, cluster: Cluster, path: Path) -> None:
        self._cluster = cluster
        self._path = path
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="token", daemon=True)
        #: When the token in the file ends (seconds since the epoch), and why it could not be renewed.
        self.expires: float | None = None
        self.mistake = ""

    def start(self) -> None:
        """Raises OSError where the folder of the token cannot be read."""
        files.sweep(self._path.parent, self._path.name)  # what a killed process left, which is secret
        self._thread.start()

    def stop(self) -> None:
        """End the thread; a request that the API server does not answer may end a little later."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_SECONDS)

    def renew(self) -> Token:
        """Fetch and write a new token now. Raises DriverError."""
        old = self._read()
        if not old.node:
            raise AccessError(f"the token in {self._path} is not bound to a Node")
        if old.node != self._cluster.node:
            raise AccessError(f"the token in {self._path} is bound to the Node {old.node}, not {self._cluster.node}")
        node = {"metadata": {"name": old.node, "uid": old.node_uid}}
        text = self._ask(old, node)
        new = read(text)
        try:
            files.replace(self._path, text.encode(), _MODE)
        except OSError as error:
            raise AccessError(f"the new token cannot be written: {error}") from error
        self.expires = new.expires
        return new

    def _ask(self, old: Token, node: dict[str, t.Any]) -> str:
        for seconds in _SECONDS:
            try:
                return str(self._cluster.token(old.namespace, old.account, node, seconds)["status"]["token"])
            except ApiError as error:
                if error.status == 401:
                    raise AccessError(_refused(old, error)) from error
                if error.status != 403 or seconds == _SECONDS[-1]:
                    raise
        raise AssertionError("there is always a last one")

    def _read(self) -> Token:
        try:
            return read(self._path.read_text(encoding="ascii"))
        except (OSError, UnicodeDecodeError) as error:
            raise AccessError(f"the token cannot be read: {error}") from error

    def _run(self) -> None:
        delay = _FIRST_DELAY
        while True:
            try:
                token = self._read()
                self.expires = token.expires
                if time.time() >= token.due():
                    token = self.renew()
                    _LOG.info("the token is renewed, until %s", time.ctime(token.expires))
                self.mistake, delay = "", _FIRST_DELAY
                wait = min(max(token.due() - time.time(), 1.0), _LONGEST_SLEEP)
            except Exception as error:  # noqa: BLE001
                # whatever it is, such as a date that no clock has: a thread that ends renews nothing any more
                message = error.message if isinstance(error, DriverError) else repr(error)
                if message != self.mistake:
                    _LOG.error("the token is not renewed: %s", message)
                self.mistake = message
                wait = delay * random.uniform(0.8, 1.2)
                delay = min(delay * 2, _MOST_DELAY)
            if self._stop.wait(wait):
                return
