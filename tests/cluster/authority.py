# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A certificate authority for one control plane. `cryptography` comes with ansible-core, so no program is needed."""

from __future__ import annotations

import datetime
import ipaddress
import os
import threading
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFETIME = datetime.timedelta(days=7)
NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
ADDRESSES = ("127.0.0.1", "10.0.0.1")  # the second is the service kubernetes.default


def write(path: Path, *parts: bytes) -> Path:
    """Write a file that only its owner can read."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(b"".join(parts))
    return path


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    form = serialization.PrivateFormat.TraditionalOpenSSL  # the only one kube-apiserver accepts for account keys
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _name(user: str, groups: tuple[str, ...]) -> x509.Name:
    """Kubernetes takes the user's name from CN and the groups from O."""
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, user)])


class Authority:
    """Issues certificates for servers and users. Each is a file in `folder` with the certificate and its key."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._lock = threading.Lock()
        name = _name("lanewise test authority", ())
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)  # sign; certificates, CRLs
        builder = (
            self._builder(name, name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
        )
        self.certificate = write(folder / "ca.pem", self._sign(builder))
        self.account_key = write(folder / "service-accounts.pem", _private(ec.generate_private_key(ec.SECP256R1())))
        self.server = self.issue("server", names=NAMES, addresses=ADDRESSES)

    def _builder(
        self, subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.timezone.utc)
        return (
            x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + LIFETIME)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )

    def _sign(self, builder: x509.CertificateBuilder) -> bytes:
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def issue(self, user: str, *groups: str, names: tuple[str, ...] = (), addresses: tuple[str, ...] = ()) -> Path:
        """Issue a certificate for a user, or for a server if names or addresses are given. Returns the file."""
        with self._lock:
            path = self.folder / f"{'+'.join([user, *groups]).replace(':', '-').replace('/', '-')}.pem"
            if path.exists():
                return path
            key = ec.generate_private_key(ec.SECP256R1())
            usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
            builder = self._builder(_name(user, groups), _name("lanewise test authority", ()), key)
            if names or addresses:
                usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
                alternatives: list[x509.GeneralName] = [x509.DNSName(name) for name in names]
                alternatives += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
                builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
            usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
            builder = builder.add_extension(usage, critical=True)
            builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            return write(path, self._sign(builder), _private(key))
