# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Claims with hostile configurations, read as the bytes of an API server, become a record or a short error in time.

LANEWISE_HOSTILE_TRIES is the number of claims; 10,000 take some minutes.
"""

from __future__ import annotations

import json
import os
import random
import time
import typing as t

from ansible_collections.lanewise.dra.tests.driver.plan_claims import NODE, PF, POD_UID, UID, VF, device, result
from lanewise_driver.api import events
from lanewise_driver.base import errors
from lanewise_driver.base.errors import DriverError
from lanewise_driver.claims import claim_status
from lanewise_driver.claims.metadata import POD_CLAIM_NAME
from lanewise_driver.claims.plan import plan
from lanewise_driver.claims.records import decode, encode
from lanewise_driver.dra.config.fields import Field
from lanewise_driver.dra.config.interface_config import API_VERSION, CONFIG, KIND
from lanewise_driver.dra.kube import limits
from lanewise_driver.dra.kube.bounded_json import JsonError, loads_pruned

TRIES = int(os.environ.get("LANEWISE_HOSTILE_TRIES", "400"))
KNOWN = {PF: device(PF, "eth1"), VF: device(VF, "eth2", pf="0000:8a:00.0", vf=0)}
_TEXTS = ["", "\0", "\n", "../..", "a" * 15, "ä" * 3000, "\ud800", "\u202e", "eth0", "lo", "IFNAME", "{}", "%s", "${x}"]
_TEXTS += ["0.0.0.0/0", "::/0", "10.0.0.1/33", "1" * 400, "0x10", "fe80::1%eth0", "::ffff:1.2.3.4", "02:00:00:00:00:01"]
#: JSON literals, some of them invalid.
_RAW = [b"-0", b"1e400", b"1E-400", b"9" * 300, b"-" + b"9" * 300, b"0.1", b"1e2", b'"\\ud800"', b'"\xff"', b"null"]


class HostileClaim:
    """Generates a claim with hostile configurations, as JSON. The same seed gives the same claim."""

    def __init__(self, seed: int) -> None:
        self.generator = random.Random(seed)

    def any(self, depth: int = 3) -> bytes:
        """Any value, often a very large or deeply nested one."""
        kind = self.generator.randrange(9) if depth else self.generator.randrange(5, 9)
        if kind == 0:
            levels = self.generator.choice([20, 63, 64, 65, 990, 2000])
            before, after = self.generator.choice([(b"[", b"]"), (b'{"a":', b"}"), (b'{"routes":[', b"]}")])
            return before * levels + self.any(0) + after * levels
        if kind == 1:
            return b"[" + b",".join([self.any(0)] * self.generator.choice([0, 33, 1000])) + b"]"
        if kind in (2, 3):
            names = [self.generator.choice([*_TEXTS, *CONFIG.fields]) for _number in range(self.generator.randrange(4))]
            return b"{" + b",".join(json.dumps(name).encode() + b":" + self.any(depth - 1) for name in names) + b"}"
        if kind == 4:
            return b"{" + b",".join(b'"%x":0' % number for number in range(self.generator.choice([0, 65, 900]))) + b"}"
        if kind == 5:
            return self.generator.choice(_RAW)
        if kind == 6:
            return b"%d" % self.generator.choice([0, 1, -1, 2**31, 2**32, 2**63, 2**64, 65535, 253])
        if kind == 7:
            return self.generator.choice([b"true", b"false"])
        return json.dumps(self.generator.choice(_TEXTS)).encode()

    def field(self, form: Field) -> bytes:
        """A value like those that the field allows, or an unexpected one."""
        if not self.generator.randrange(6):
            return self.any()
        if form.type == "object":
            names = [name for name in form.fields if form.fields[name].required or self.generator.randrange(3) == 0]
            return self.mapping([(name, form.fields[name]) for name in names])
        if form.type == "list" and form.item:
            length = self.generator.choice([0, 1, 2, form.maximum, form.maximum + 1])
            return b"[" + b",".join(self.field(form.item) for _number in range(length)) + b"]"
        if form.type == "map" and form.item:
            names = ["net.ipv4.conf.IFNAME.rp_filter", "tx-checksumming", *_TEXTS]
            number = self.generator.randrange(4)
            return self.mapping([(self.generator.choice(names), form.item) for _number in range(number)])
        if form.choices:
            return json.dumps(self.generator.choice(form.choices)).encode()
        if form.type in ("int", "setting"):
            return b"%d" % self.generator.choice([form.minimum - 1, form.minimum, form.maximum, form.maximum + 1])
        if form.type == "bool":
            return self.generator.choice([b"true", b"false", b"1"])
        return json.dumps(self.generator.choice([*_TEXTS, "10.0.0.1", "10.0.0.0/8", "10.0.0.1/24", "net1"])).encode()

    def mapping(self, fields: t.Sequence[tuple[str, Field]]) -> bytes:
        return b"{" + b",".join(json.dumps(name).encode() + b":" + self.field(form) for name, form in fields) + b"}"

    def parameters(self) -> bytes:
        """Parameters of a size that an API server accepts."""
        while len(parameters := self._parameters()) > limits.OPAQUE_BYTES:
            pass
        return parameters

    def _parameters(self) -> bytes:
        chosen = [(name, form) for name, form in CONFIG.fields.items() if not form.required]
        chosen = self.generator.sample(chosen, self.generator.randrange(4))
        header = b'"apiVersion":"%s","kind":"%s"' % (API_VERSION.encode(), KIND.encode())
        inner = self.mapping(chosen)[1:-1]
        text = b"{" + header + (b"," + inner if inner else b"") + b"}"
        if not self.generator.randrange(30):  # a damaged byte; usually the result is no JSON
            offset = self.generator.randrange(len(text))
            text = text[:offset] + self.generator.choice([b"", b"[", b'"', b"\\", b"\xff", b"\0"]) + text[offset + 1 :]
        return text if self.generator.randrange(8) else self.any()

    def claim(self) -> bytes:
        configs = []
        for _number in range(self.generator.choice([1, 1, 2, 32])):
            source = self.generator.choice([b"FromClaim", b"FromClaim", b"FromClass"])
            opaque = b'{"driver":"lanewise.dev","parameters":' + self.parameters() + b"}"
            configs.append(b'{"source":"%s","opaque":%s}' % (source, opaque))
        status = b'{"allocation":{"devices":{"results":[%s],"config":[%s]}},"reservedFor":[%s]}' % (
            json.dumps(result("nic", self.generator.choice([PF, VF]))).encode(),
            b",".join(configs),
            json.dumps({"resource": "pods", "name": "pod", "uid": POD_UID}).encode(),
        )
        has_name = not self.generator.randrange(4)
        annotations = {POD_CLAIM_NAME: self.generator.choice(["nic", *_TEXTS])} if has_name else {}
        metadata = {"name": "claim", "namespace": "ns", "uid": UID, "annotations": annotations}
        return b'{"metadata":%s,"spec":{},"status":%s}' % (json.dumps(metadata).encode(), status)


def test_hostile_configurations_are_accepted_or_refused_in_time() -> None:
    accepted = refused = invalid = 0
    slowest = (0.0, 0)
    for seed in range(TRIES):
        content = HostileClaim(seed).claim()
        start = time.process_time()
        try:
            claim = loads_pruned(content)
        except JsonError:
            invalid += 1
            continue
        try:
            record = plan(claim, uid=UID, node=NODE, known=KNOWN, records=[], boot="boot")
            message = ""
        except DriverError as error:
            message = error.message
        slowest = max(slowest, (time.process_time() - start, seed))
        if message:
            refused += 1
            assert len(message) <= errors.MESSAGE_LIMIT and len(events.shortened(message).encode()) <= events.NOTE_BYTES
        else:
            accepted += 1
            assert decode(encode(record)) == record, seed
            json.dumps(claim_status.devices(record), ensure_ascii=False).encode()  # raises an error for lone surrogates
    print(f"accepted {accepted}, refused {refused}, no JSON {invalid}")
    print(f"the slowest took {slowest[0]:.3f} s (seed {slowest[1]})")
    assert accepted > TRIES / 100 and refused > TRIES / 3
    assert slowest[0] < 5
