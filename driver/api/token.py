# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The service account token of a driver that runs outside of pods: bound to the Node, and renewed by the driver.

A token is bound to the Node object by name and UID, and becomes invalid when the Node is deleted. The token contains
the names of its service account and Node, so only its path is a setting.
"""

from __future__ import annotations

import base64
import logging
import random
import threading
import time
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from ..base import files
from ..base.errors import DriverError
from ..base.objects import Object
from ..dra.kube.bounded_json import loads
from .access import AccessError
from .client import ApiError
from .cluster import Cluster

_LOG = logging.getLogger(__name__)
_MODE = 0o600
#: The requested lifetimes in seconds, the longest first: the admission policy of an earlier release allows only a day.
#: The server may grant less.
_LIFETIMES = (7 * 24 * 3600, 24 * 3600)
_RENEW_AFTER = 0.5  # of a token's lifetime
#: Seconds between two attempts after errors.
_MIN_DELAY, _MAX_DELAY = 5.0, 300.0
_STOP_SECONDS = 3.0
_MAX_SLEEP_SECONDS = 3600.0  # the clock may jump, and an administrator may replace the token


@dataclass(frozen=True)
class Token:
    """The content of a token; times are seconds since the epoch. `node` is empty if the token is not bound to a
    Node."""

    namespace: str
    account: str
    node: str
    node_uid: str
    issued: float
    expires: float

    def due(self) -> float:
        """When the token should be renewed, in seconds since the epoch."""
        return self.issued + (self.expires - self.issued) * _RENEW_AFTER


def read(text: str) -> Token:
    """The content of a service account token; its signature is not verified. Raises AccessError for an invalid
    token."""
    try:
        payload = text.strip().split(".")[1]
        claims = loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        private = claims["kubernetes.io"]
        token = Token(
            namespace=private["namespace"],
            account=private["serviceaccount"]["name"],
            node=private.get("node", {}).get("name", ""),
            node_uid=private.get("node", {}).get("uid", ""),
            issued=float(claims["iat"]),
            expires=float(claims["exp"]),
        )
        if token.issued <= token.expires:  # false for NaN, which this JSON parser accepts
            return token
        raise ValueError("the token expires before it was issued")
    except (IndexError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise AccessError(f"not a valid service account token: {error!r}") from error


def _rejection(token: Token, error: ApiError) -> str:
    """Why the server no longer accepts the token, and what to do."""
    fix = f"Get a new one: ansible-playbook lanewise.dra.driver --limit {token.node} (on the controller)"
    if token.expires > time.time():
        return (
            f"the API server rejects the token: {error.message}. Was the Node object deleted and created again? {fix}"
        )
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(token.expires))
    return f"the token expired on {when}, while the node was off or could not reach the API server. {fix}"


class TokenRenewer:
    """Renews the token in a file, in a thread.

    A token is renewed when half of its lifetime is left, so the API server may be down for hours. The file is replaced
    atomically, and `cluster` reads it again when it has changed.
    """

    def __init__(self, cluster: Cluster, path: Path) -> None:
        self._cluster = cluster
        self._path = path
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="token", daemon=True)
        #: When the token in the file expires (seconds since the epoch), and why the last attempt to renew it failed.
        self.expires: float | None = None
        self.problem = ""

    def start(self) -> None:
        """Start the thread. Raises OSError if leftovers of an earlier process cannot be removed."""
        files.sweep(self._path.parent, self._path.name)  # unfinished files contain secrets
        self._thread.start()

    def stop(self) -> None:
        """End the thread. If it waits for the API server, it may end a little later."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_SECONDS)

    def renew(self) -> Token:
        """Request and write a new token now. Raises DriverError."""
        old = self._read()
        if not old.node:
            raise AccessError(f"the token in {self._path} is not bound to a Node")
        if old.node != self._cluster.node:
            raise AccessError(f"the token in {self._path} is bound to the Node {old.node}, not {self._cluster.node}")
        node: Object = {"metadata": {"name": old.node, "uid": old.node_uid}}
        text = self._request(old, node)
        new = read(text)
        try:
            files.replace(self._path, text.encode(), _MODE)
        except OSError as error:
            raise AccessError(f"could not write the new token to {self._path}: {error}") from error
        self.expires = new.expires
        return new

    def _request(self, old: Token, node: Object) -> str:
        for seconds in _LIFETIMES:
            try:
                return str(self._cluster.token(old.namespace, old.account, node, seconds)["status"]["token"])
            except ApiError as error:
                if error.status == HTTPStatus.UNAUTHORIZED:
                    raise AccessError(_rejection(old, error)) from error
                if error.status != HTTPStatus.FORBIDDEN or seconds == _LIFETIMES[-1]:
                    raise
        raise AssertionError("the loop returns or raises at the last lifetime")

    def _read(self) -> Token:
        try:
            return read(self._path.read_text(encoding="ascii"))
        except (OSError, UnicodeDecodeError) as error:
            raise AccessError(f"could not read the token {self._path}: {error}") from error

    def _run(self) -> None:
        delay = _MIN_DELAY
        while True:
            try:
                token = self._read()
                self.expires = token.expires
                if time.time() >= token.due():
                    token = self.renew()
                    _LOG.info("renewed the token; it expires at %s", time.ctime(token.expires))
                self.problem, delay = "", _MIN_DELAY
                wait = min(max(token.due() - time.time(), 1.0), _MAX_SLEEP_SECONDS)
            except Exception as error:  # noqa: BLE001
                # any error, such as a date that is out of range: if the thread ended, nothing would be renewed
                message = error.message if isinstance(error, DriverError) else repr(error)
                if message != self.problem:
                    _LOG.error("could not renew the token: %s", message)
                self.problem = message
                wait = delay * random.uniform(0.8, 1.2)
                delay = min(delay * 2, _MAX_DELAY)
            if self._stop.wait(wait):
                return
