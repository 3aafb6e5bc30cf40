# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What leaves a site in a support bundle holds no secret, and still tells what belongs together."""

from __future__ import annotations

import base64
import json

import pytest
from ansible_collections.lanewise.dra.plugins.filter.redact import GONE, redact
from hypothesis import given
from hypothesis import strategies as st

words = st.text("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-", min_size=12, max_size=60)
around = st.sampled_from(["", " ", "\n", "level=info ", '{"a": 1} ', "dev eth0 ", "("])


@given(
    words,
    around,
    st.sampled_from(["password: {}", 'token="{}"', '"client-key-data": "{}"', "db_password={}", "Bearer {}"]),
)
def test_no_secret_is_left(secret, before, form):
    secret = "Zq" + secret  # not a part of what stands around it
    assert secret not in redact(before + form.format(secret) + "\nnext", "salt")


@given(words, words)
def test_no_token_is_left_wherever_it_stands(one, two):
    header = base64.urlsafe_b64encode(b'{"alg":"RS256","kid":"x"}').decode().rstrip("=")
    token = f"{header}.{one}.{two}"
    for text in (token, f"got {token} from", json.dumps({"any": token}), json.dumps(json.dumps({"any": token}))):
        assert one not in redact(text, "salt") and GONE in redact(text, "salt")


@given(st.ip_addresses(), around)
def test_addresses_become_names(address, before):
    text = f"{before}{address}/24 via x"
    kept = address.is_loopback or address.is_unspecified or address.is_multicast
    assert (str(address) in redact(text, "salt")) is kept
    assert redact(text, "salt") == redact(text, "salt")


def test_a_name_stands_for_one_value():
    text = "e8:eb:d3:00:00:01 E8-EB-D3-00-00-01 e8:eb:d3:00:00:02"
    one, two, other = redact(text, "salt").split()
    assert one == two != other
    assert redact("e8:eb:d3:00:00:01", "salt") != redact("e8:eb:d3:00:00:01", "other")
    assert redact("10.0.0.1", "s") == redact("10.0.0.1,", "s")[:-1]
    forms = {redact(form, "s") for form in ("0c42:a103:00b6:5f2e", "0c:42:a1:03:00:b6:5f:2e", "0x0c42a10300b65f2e")}
    assert len(forms) == 1


@pytest.mark.parametrize(
    "text",
    [
        "0000:19:00.0 10000:e1:00.0 pci0000:15/0000:15:01.0/0000:16:00.0",
        "2026-11-21T18:13:21Z 18:13:21.123456 1:2",
        "mlx5_0 port 1 rev 01 fw 28.39.1002 driver 5.15.0-97-generic lanewise-driver 1.0.0-3f9c2d417a55",
        "127.0.0.1 ::1 0.0.0.0 std::vector",
        "[15b3:1021] vendor 0x15b3 speed 32.0 GT/s ::",
        '{"tokens": 3, "serial": null, "secretless": true}',
    ],
)
def test_what_tells_the_fault_stays(text):
    assert redact(text, "salt") == text


def test_what_is_one_in_a_file_of_the_cluster():
    text = json.dumps(
        {"serial": "MT2204X01234", "part": "MCX75310AAS-NEAT", "gid": "fe80:0000:0000:0000:0c42:a1ff:fe03:1"}
    )
    told = json.loads(redact(text, "salt"))
    assert (
        told["serial"].startswith("<serial-") and told["part"] == "MCX75310AAS-NEAT" and told["gid"].startswith("<ip-")
    )
    key = "-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc\n-----END RSA PRIVATE KEY-----"
    assert redact(f"a {key} b", "s") == f"a {GONE} b"
