# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What leaves a site in a support bundle holds no secret, and still tells what belongs together."""

from __future__ import annotations

import base64
import ipaddress
import json
import re

import pytest
from ansible_collections.lanewise.dra.plugins.filter.redact import GONE, redact
from hypothesis import example, given
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


@given(st.text(st.characters(exclude_characters="\n"), min_size=8, max_size=20), st.integers(0, 3))
def test_no_secret_is_left_of_a_text_in_quotes(secret, depth):
    text = json.dumps({"a": "b", "password": f"Zq{secret}", "c": "d"})
    for _unused in range(depth):
        text = json.dumps({"message": text})
    told = redact(text, "salt")
    assert "Zq" not in told
    if depth < 2 and "\\" not in json.dumps(secret):
        assert told == text.replace(json.dumps(f"Zq{secret}") if not depth else f'\\"Zq{secret}\\"', GONE)


@given(
    words,
    st.sampled_from(
        [
            *("http://user:{}@proxy:3128/", "https_proxy=http://user:{}@proxy", "Get https://{}@example.com/v2/"),
            *("kubeadm join --token {} --x", "run --db-password {}", "\\nAuthorization: Basic {}", "\\nBearer {}"),
            "-----BEGIN PGP PRIVATE KEY BLOCK-----\n{}\n-----END PGP PRIVATE KEY BLOCK-----",
        ]
    ),
)
def test_no_secret_is_left_of_addresses_options_and_blocks(secret, form):
    told = redact(form.format(f"Zq{secret}") + "\nnext", "salt")
    assert secret not in told and GONE in told and told.endswith("\nnext")


macs = st.binary(min_size=6, max_size=6)
lines = st.sampled_from(
    [
        *(
            "    link/ether {} brd ff",
            "{}",
            "{}: no carrier",
            "addr:{} up",
            "\\n{}\\n",
            "x-{}-y",
            '"mac": {{"string": "{}"}}',
        ),
        *("DHCPACK of {}.", "({})", "mac={},", "mac:{}", "[{}]"),
    ]
)


@given(macs, lines, st.sampled_from(":-"), st.booleans())
def test_a_mac_address_has_one_name_wherever_it_stands(mac, line, between, upper):
    written = mac.hex(between).upper() if upper else mac.hex(between)
    told = redact(line.format(written), "salt")
    assert written not in told and redact(mac.hex(":"), "salt") in told


@given(
    macs, st.sampled_from(["en", "wl", "ib"]), st.sampled_from(["3: {}: <UP>", "10-{}.link", "\\n{}.100@{}", "dev {}"])
)
def test_a_mac_address_in_a_name_is_the_same(mac, prefix, line):
    told = redact(line.format(*[f"{prefix}x{mac.hex()}"] * 2), "salt")
    assert mac.hex() not in told and f"{prefix}x{redact(mac.hex(':'), 'salt')}" in told


@given(st.binary(min_size=8, max_size=8), lines)
def test_a_guid_has_one_name_wherever_it_stands(guid, line):
    digits = guid.hex()
    for written in (guid.hex(":"), guid.hex(":", 2), f"0x{digits}"):
        told = redact(line.format(written), "salt")
        assert written not in told and redact(f"0x{digits}", "salt") in told


@given(st.binary(min_size=14, max_size=20).filter(lambda octets: len(octets) in (14, 20)))
def test_longer_addresses_of_hardware_go_too(octets):
    told = redact(f"link/infiniband {octets.hex(':')} MAC={octets.hex(':')} SRC", "salt")
    assert not any(octets.hex(":")[at : at + 17] in told for at in range(0, 24, 3))


@example(ipaddress.ip_address("ff00::1:1000:1000:1000:1000"), "{}: unreachable")
@given(st.ip_addresses(v=6), st.sampled_from(["{}: unreachable", "IP:{}", "\\n{} dev", "from {}.", "{}%eth0"]))
def test_addresses_become_names_wherever_they_stand(address, line):
    kept = address.is_loopback or address.is_unspecified or address.is_multicast
    assert (str(address) in redact(line.format(address), "salt")) is kept


@given(
    st.from_regex(r"[A-Z]{2}[0-9]{3,8}[A-Z0-9]{0,8}", fullmatch=True),
    st.sampled_from(
        [
            *("  serial_number {}", "  board.serial_number {}", 'product_serial": "{}"', '"serial_number":"{}"'),
            *("Serial Number: {}", "serial={},", "SerialNumber: {}", "\\nserial: {}", '\\"board_serial\\": \\"{}\\"'),
            *('"serial": {{\n    "string": "{}"\n}}', '"serial": "{}.A/1 x"', "[V3] Serial no {}."),
        ]
    ),
)
def test_a_serial_number_has_one_name_wherever_it_stands(serial, line):
    told = redact(line.format(serial), "salt")
    assert serial not in told and "<serial-" in told
    assert redact(f"serial: {serial}", "salt")[8:] in told or "/1" in line
    assert not re.search(r"\.A|/1", told)


def test_devices_that_have_no_serial_number():
    uuid = "5a3c1f00-2222-3333-4444-555566667777"
    switch = "0c42a10300b65f2e"
    text = json.dumps(
        {
            "attributes": {"uuid": {"string": f"GPU-{uuid}"}, "parent": {"string": f"MIG-{uuid}"}},
            **{"vpd": {"uuid": uuid.replace("-", "")}, "systemUUID": uuid, "uid": uuid},
            **{"phys_switch_id": switch, "phys_port_name": "p0"},
        }
    )
    told = json.loads(redact(text, "salt"))
    assert told.pop("uid") == uuid and told["phys_port_name"] == "p0"  # of objects in the cluster
    assert uuid not in str(told) and uuid.replace("-", "") not in str(told) and switch not in str(told)
    assert told["attributes"]["uuid"]["string"].startswith("<gpu-")
    assert switch not in redact(f"portname p0 switchid {switch} addrgenmode", "salt")


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
        "docker://registry:5000/image@sha256:0c42 ssh://git@example.com http://proxy:3128/a 2026-11-21-18-13-21-12",
        "serial number of 12 cards, serial_number unknown, serial no longer read, a token is needed, use --token",
        "enx enxtra enp1s0f0np0 root=UUID=0a1b2c3d-0000-1111-2222-333344445555 switch_id unknown port_id 1",
        '"uid": "0a1b2c3d-0000-1111-2222-333344445555", "uuid": null, ff02::1:ff00:1, keyJson.value',
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
