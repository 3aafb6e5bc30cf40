# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How to reach the API server: address and credentials, from a pod's service account or from a kubeconfig."""

from __future__ import annotations

import base64
import os
import re
import typing as t
from dataclasses import dataclass, field
from pathlib import Path

from ..base.errors import DriverError
from ..base.objects import Object

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_CERTIFICATE = re.compile(r"-----BEGIN [A-Z ]*CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END [A-Z ]*CERTIFICATE-----")

#: Inode, size and modification time of several files; zeros for a file that cannot be read.
Stamp = tuple[tuple[int, int, int], ...]


class AccessError(DriverError):
    """The credentials for the API server cannot be read or used."""


@dataclass(frozen=True)
class Access:
    """How to reach the API server.

    `authority` is the CA certificates as PEM text; `certificate` is the client's certificate and key as PEM text.
    `sources` are the files from which all of this was read, except `token_file`, which is read again when it changes.
    """

    server: str
    authority: str = field(default="", repr=False)
    certificate: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    token_file: Path | None = None
    server_name: str | None = None
    sources: tuple[Path, ...] = ()


def in_cluster(folder: Path = _ACCOUNT) -> Access:
    """The service account of the pod that this process runs in. Raises AccessError."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise AccessError("no kubeconfig is set, and the driver does not run in a pod with a service account")
    authority = _certificates(text(folder / "ca.crt"), folder / "ca.crt")
    host = f"[{host}]" if ":" in host else host
    return Access(f"https://{host}:{port}", authority, token_file=folder / "token", sources=(folder / "ca.crt",))


def from_kubeconfig(path: Path, token_file: Path | None = None) -> Access:
    """The current context of a kubeconfig. `token_file` replaces the user's credentials in it.

    Raises AccessError if the file is not a valid kubeconfig, or if its user needs a program to authenticate.
    """
    import yaml

    try:
        return _access(path, yaml.safe_load(text(path)), token_file)
    except KeyError as error:
        raise AccessError(f"{path} is not a valid kubeconfig: it has no {error.args[0]}") from error
    except UnicodeDecodeError:  # whose text would contain the key
        raise AccessError(f"{path} is not a valid kubeconfig: a certificate or key in it is not ASCII text") from None
    except (TypeError, AttributeError, ValueError, yaml.YAMLError) as error:
        raise AccessError(f"{path} is not a valid kubeconfig: {error!r}") from error


def _access(path: Path, data: Object, token_file: Path | None) -> Access:
    """The access that a parsed kubeconfig describes. Raises AccessError, and other exceptions if its form is wrong."""
    context = _entry(data, "context", data["current-context"])
    cluster = _entry(data, "cluster", context["cluster"])
    user: Object = {} if token_file else _entry(data, "user", context["user"]) or {}
    server = cluster["server"].rstrip("/")
    if not server.startswith("https://"):
        raise AccessError(f"{path}: the server's address must begin with https://, but is {server!r}")
    if user.get("exec") or user.get("auth-provider"):
        raise AccessError(
            f"{path}: the user needs a program to authenticate, which the driver does not run; set token_file"
        )
    sources = [path]
    authority = _pem(cluster, "certificate-authority", path, sources)
    if authority or cluster.get("certificate-authority"):
        authority = _certificates(authority, sources[-1])
    certificate = ""
    if user.get("client-certificate") or user.get("client-certificate-data"):
        parts = [_pem(user, key, path, sources) for key in ("client-certificate", "client-key")]
        certificate = "\n".join(parts)
    if user.get("tokenFile"):
        token_file = path.parent / user["tokenFile"]
    return Access(
        server=server,
        authority=authority,
        certificate=certificate,
        token=checked_token(user.get("token") or "", path),
        token_file=token_file,
        server_name=cluster.get("tls-server-name"),
        sources=tuple(sources),
    )


def _pem(holder: Object, key: str, path: Path, sources: list[Path]) -> str:
    """The PEM text under `key`: from the kubeconfig itself, or from the file that it names. That file is added to
    `sources`. Empty if there is neither."""
    if holder.get(f"{key}-data"):
        return base64.b64decode(holder[f"{key}-data"], validate=True).decode("ascii")
    if holder.get(key):
        sources.append(path.parent / holder[key])
        return text(sources[-1])
    return ""


def _certificates(pem: str, path: Path) -> str:
    """The certificates in the content of a file, without comments, which may be in any language. Raises AccessError
    for a file without a certificate: the server would be checked against the certificates of the system."""
    found = _CERTIFICATE.findall(pem)
    if not found:
        raise AccessError(f"{path} contains no certificate")
    return "\n".join(found) + "\n"


def checked_token(token: str, path: Path) -> str:
    """A token without the spaces around it. Raises AccessError, without the token, if it cannot be in a header."""
    token = token.strip()
    if not all("!" <= character <= "~" for character in token):
        raise AccessError(f"the token in {path} is not valid")
    return token


def _entry(data: Object, kind: str, name: str) -> Object:
    """The context, cluster or user of this name in a kubeconfig. Raises KeyError with what is missing."""
    for entry in data[f"{kind}s"]:
        if entry.get("name") == name:
            return t.cast("Object", entry[kind])
    raise KeyError(f"{kind} {name!r}")


def text(path: Path) -> str:
    """The content of a file. Raises AccessError."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise AccessError(f"could not read {path}: {error}") from error


def stamp(paths: t.Iterable[Path]) -> Stamp:
    """A value that changes when one of these files changes."""
    states = []
    for path in paths:
        try:
            status = path.stat()
            states.append((status.st_ino, status.st_size, status.st_mtime_ns))
        except OSError:
            states.append((0, 0, 0))
    return tuple(states)
