# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A support bundle contains no secrets. In it, a hardware or IP address has the same placeholder everywhere."""

from __future__ import annotations

import base64
import ipaddress
import json
import re
import time

import pytest
from ansible_collections.lanewise.dra.plugins.filter.redact import REDACTED, redact
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
    secret = "Zq" + secret  # so that the surrounding text does not contain it
    assert secret not in redact(before + form.format(secret) + "\nnext", "salt")


@given(words, words)
def test_no_token_is_left_wherever_it_stands(one, two):
    header = base64.urlsafe_b64encode(b'{"alg":"RS256","kid":"x"}').decode().rstrip("=")
    token = f"{header}.{one}.{two}"
    for text in (token, f"got {token} from", json.dumps({"any": token}), json.dumps(json.dumps({"any": token}))):
        assert one not in redact(text, "salt") and REDACTED in redact(text, "salt")


@given(st.text(st.characters(exclude_characters="\n"), min_size=8, max_size=20), st.integers(0, 3))
def test_no_secret_is_left_of_a_text_in_quotes(secret, depth):
    text = json.dumps({"a": "b", "password": f"Zq{secret}", "c": "d"})
    for _unused in range(depth):
        text = json.dumps({"message": text})
    redacted = redact(text, "salt")
    assert "Zq" not in redacted
    if depth < 2 and "\\" not in json.dumps(secret):
        assert redacted == text.replace(f"Zq{secret}", REDACTED)
    inner = json.loads(redacted)
    for _unused in range(depth):
        inner = json.loads(inner["message"])
    assert inner == {"a": "b", "password": REDACTED, "c": "d"}
    line = redact(f"level=info {text}", "salt")  # by patterns alone
    assert "Zq" not in line and json.loads(line[11:]) == json.loads(redacted)


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
    redacted = redact(form.format(f"Zq{secret}") + "\nnext", "salt")
    assert secret not in redacted and REDACTED in redacted and redacted.endswith("\nnext")


@pytest.mark.parametrize(
    "text, redacted",
    [
        *(
            ("netroot=iscsi:user1:S3cret@10.0.0.5::3260::iqn x", f"netroot=iscsi:{REDACTED}@<ip> x"),
            ("netroot=iscsi:user1:S3cret:back:S3cret2@10.0.0.5::3260::iqn", f"netroot=iscsi:{REDACTED}@<ip>"),
            ("root=iscsi:user1:S3c/ret@san::::iqn.2026-01.com.example:x", f"root=iscsi:{REDACTED}@san"),
            (
                "netroot=cifs:user1:S3cret@san/x proxy=me:S3cret@proxy:3128",
                f"netroot=cifs:{REDACTED}@san/x proxy={REDACTED}@",
            ),
        ),
        *(
            ("password=S3cret,S3cret;S3cret", f"password={REDACTED}"),
            ("password=S3cret, user=bob", f"password={REDACTED}, user=bob"),
            ("password=S3cret,user=bob;a=b", f"password={REDACTED},user=bob;a=b"),
            ("(password=S3cret)", f"(password={REDACTED})"),
            ("{password: S3}cret, a: b}", f"{{password: {REDACTED}, a: b}}"),
            ("password=S3'cret x", f"password={REDACTED} x"),
            ("['--password=S3cret', 'x']", f"['--password={REDACTED}', 'x']"),
            (r'{"a": "{\"b\": \"password=S3cret\"}"} x', f'password={REDACTED}\\"}}"}} x'),
            ("password: 'it''s S3cret' # x", f"password: '{REDACTED}' # x"),
            (r"{'password': 'it\'s S3cret', 'a': 1}", f"{{'password': '{REDACTED}', 'a': 1}}"),
            ('password="S3cret in a line that was cut\nnext', f'password="{REDACTED}\nnext'),
            ("password: 12345\npassword := S3cret", f"password: {REDACTED}\npassword := {REDACTED}"),
        ),
        *(
            ("passwordHash=S3cret secret_key=S3cret", f"passwordHash={REDACTED} secret_key={REDACTED}"),
            ("tokenValue: S3cret\nauth-key: S3cret", f"tokenValue: {REDACTED}\nauth-key: {REDACTED}"),
            ("run --token-value S3cret --x", f"run --token-value {REDACTED} --x"),
        ),
        *(
            (
                'x "password": {"value": "S3cret", "n": 1}, "a": "b"',
                f'"password": {{"value": "{REDACTED}", "n": 1}}, "a": "b"',
            ),
            (
                'x \\"token\\": [\\"S3cret1\\", \\"S3cret2\\"], b',
                f'\\"token\\": [\\"{REDACTED}\\", \\"{REDACTED}\\"], b',
            ),
            ("x token: [S3cret1, S3cret2] b", f"x token: [{REDACTED}, {REDACTED}] b"),
            ("x password: {value: S3cret, a: true} b", f"{{value: {REDACTED}, a: true}} b"),
            ("x token: [S3cret\nnext [x] 'y'", f"[{REDACTED}\nnext [x] 'y'"),
            ('x "token: [S3cret", "x"\nnext "x"', '\nnext "x"'),
            ('x "args": ["--token", "S3cret", "--x", "y"]', f'["--token", "{REDACTED}", "--x", "y"]'),
            ("args:\n  - --token\n  - S3cret\n  - x", f"  - --token\n  - {REDACTED}\n  - x"),
            ("- name: DB_PASSWORD\n  value: S3cret\n", f"  value: {REDACTED}\n"),
            ('x {"name": "DB_PASSWORD", "value": "S3cret"}', f'"value": "{REDACTED}"}}'),
            ("password: |\n  S3cret: x\n  S3cret\nnext: x", f"password: |\n  {REDACTED}\n  {REDACTED}\nnext: x"),
            ("a:\n  tokens: # x\n  - S3cret\n  - b: S3cret\n  c: d", f"  - {REDACTED}\n  - b: {REDACTED}\n  c: d"),
            ("password:\n  value:\n    S3cret\n  length: 3\nx: y", f"  value:\n    {REDACTED}\n  length: 3\nx: y"),
        ),
    ],
)
def test_no_secret_is_left_in_any_form(text, redacted):
    result = redact(text, "salt")
    assert "S3" not in result and "cret" not in result.replace("secret_", "")
    assert redacted.split("<ip>")[0] in result and result.startswith(text[:3])


FORMS = [
    *("Authorization: token {}", "Authorization: Token {}", "authorization: {}", 'curl -H "Authorization: ApiKey {}"'),
    *("Cookie: a=b; session={}", "Set-Cookie: {}; Path=/", "proxy-authorization: Digest x, y={}"),
    *("psk={}", "wifi.psk={}", "PresharedKey = {}", "PreSharedKey={}", "pre-shared-key: {}", "sharedKey={}"),
    *("--dhchap-ctrl-secret {}", "--dhchap-ctrl-secret={}", "dhchap_ctrl_secret={}", "--dhchap-secret={}"),
    *("pass={}", "--pass {}", "db.pass: {}", "credential={}", "credentials={}", "creds: {}", "pwd={}", "m_key={}"),
    *("AccountKey={};EndpointSuffix=x", "SharedAccessKey={}", "encryption-key: {}", "signing_key={}", "passcode: {}"),
    '{{"auths": {{"registry.example": {{"auth": "{}"}}}}}} x',
    "//registry.example/:_auth={}",
    "apiVersion: v1\nkind: Secret\nmetadata:\n  name: a\ndata:\n  username: {}\n",
    "---\na: b\n---\nstringData:\n    anything: |\n      {}\nkind: Secret\n---\nc: d\n",
    "items:\n- apiVersion: v1\n  data:\n    .dockerconfigjson: {}\n  kind: Secret\n  metadata: x",
    *("DHHC-1:00:{}:", "secret of DHHC-1:01:{}: x", "NVMeTLSkey-1:01:{}:", "got ghp_{} there", "hf_{}", "AKIA{}"),
]


@given(st.text("abcdefABCDEF0123456789", min_size=16, max_size=40), st.sampled_from(FORMS), st.integers(0, 2))
def test_no_secret_is_left_of_the_forms_of_services(secret, form, depth):
    text = form.format(f"Zq{secret}9")
    for _unused in range(depth):
        text = json.dumps({"message": text})
    for whole in (text, f"level=info {text}", f"a\n{text}\nnext"):
        redacted = redact(whole, "salt")
        assert secret not in redacted and REDACTED in redacted
    if depth:
        json.loads(redact(text, "salt"))


@given(words, st.booleans(), st.sampled_from([None, 2]))
def test_no_secret_in_json_is_left(secret, in_list, indent):
    secret = f"Zq{secret}"
    one = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": "kept",
            "annotations": {"last-applied": json.dumps({"kind": "Secret", "data": {"username": secret}})},
        },
        "data": {"username": secret, "token-file": secret, "pin": 1234, "": secret, ".dockerconfigjson": secret},
        "stringData": {"policy": secret},
    }
    items = [{key: value for key, value in one.items() if key != "kind"}]
    whole = {"kind": "SecretList", "items": items} if in_list else {"kind": "List", "items": [one]}
    redacted = redact(json.dumps(whole, indent=indent), "salt")
    (found,) = json.loads(redacted)["items"]
    assert secret not in redacted and "1234" not in redacted
    assert found["metadata"]["name"] == "kept" and list(found["data"]) == list(one["data"])


@pytest.mark.parametrize(
    "text",
    [
        "authorization mode: Node,RBAC",
        "--authorization-mode=Node,RBAC",
        '{"authorization": {"mode": "Webhook"}}',
        "12 tests passed: 3 skipped, bypass=1 passthrough=on iommu=pt",
        "PWD=/root/lanewise",
        "auth: enabled",
        "kind: SecretStore\ndata:\n  a: b",
        "kind: ConfigMap\ndata:\n  a: b",
        "compass: north",
        "no credential was found",
    ],
)
def test_text_that_resembles_a_secret_is_not_redacted(text):
    assert redact(text, "salt") == text


SECRETS = {
    "password": {"value": "S3cret", "deep": [{"x": "S3cret"}, 3, None, True]},
    "token": ["S3cret1", "S3cret2"],
    **dict.fromkeys(
        ["secretKey", "secret_key", "private_key", "authKey", "tokenValue", "passwordHash", "x.token"], "S3cret"
    ),
    "args": ["--token", "S3cret", "--db-password=S3cret", "a --token S3cret", "--token", "--verbose"],
    "env": [
        {"name": "DB_PASSWORD", "value": "S3cret"},
        {"key": "TOKEN", "value": "S3cret"},
        {"name": "A", "value": "b"},
    ],
    "message": 'said {"password": "S3cret"} and password: S3cret',
    "annotation": json.dumps({"spec": {"env": [{"name": "TOKEN", "value": "S3cret"}], "token": None}}),
    "password2": {"value": 'S3 "cret\\'},
    "pin": {"password": 123456, "tokens": 3, "tokenValue": None},
}


@pytest.mark.parametrize("form", [{}, {"indent": 4, "sort_keys": True}, {"indent": "\t"}, {"separators": (",", ":")}])
@pytest.mark.parametrize("depth", range(3))
def test_no_secret_is_left_in_json_that_stays_json(form, depth):
    text = json.dumps(SECRETS, **form)
    for _unused in range(depth):
        text = json.dumps({"inner": text}, **form)
    redacted = redact(f" {text}\n", "salt")
    line = redact(f"x {text}", "salt")  # by patterns alone
    json.loads(line[2:])
    assert redacted.startswith(" {") and redacted.endswith("}\n") and "123456" not in redacted + line
    assert not re.search('S3|cret[12 "\\\\]', redacted + line)
    value = json.loads(redacted)
    assert json.dumps(value, **form) == redacted.strip()
    for _unused in range(depth):
        value = json.loads(value["inner"])
    assert value["password"] == {"value": REDACTED, "deep": [{"x": REDACTED}, 3, None, True]}
    assert value["token"] == [REDACTED, REDACTED] and value["secretKey"] == value["x.token"] == REDACTED
    assert value["args"] == [
        "--token",
        REDACTED,
        f"--db-password={REDACTED}",
        f"a --token {REDACTED}",
        "--token",
        "--verbose",
    ]
    assert value["env"][2] == {"name": "A", "value": "b"} and value["env"][0]["value"] == REDACTED
    assert value["message"] == f'said {{"password": "{REDACTED}"}} and password: {REDACTED}'
    assert json.loads(value["annotation"])["spec"]["token"] is None
    assert value["pin"] == {"password": REDACTED, "tokens": 3, "tokenValue": None}
    value_first = json.dumps([{"value": "S3cret", "name": "TOKEN"}, {"serial": 12345678}])
    assert json.loads(redact(value_first, "salt"))[0]["value"] == REDACTED


keys = st.sampled_from(
    ["a", "password", "token", "serial", "name", "value", "secretName", "switch_id", "uuid", "--token"]
)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["", "x'", 'a="', "token=\\"]),
    lambda inner: st.lists(inner) | st.dictionaries(keys, inner) | inner.map(json.dumps),
)


@example({"serial": float("inf"), "a": {"serial": False, "switch_id": 12345678}}, None, True)
@given(st.dictionaries(keys, values), st.sampled_from([None, 4]), st.booleans())
def test_json_stays_json(value, indent, ascii_alone):
    redacted = json.loads(redact(json.dumps(value, indent=indent, ensure_ascii=ascii_alone), "salt"))
    assert list(redacted) == list(value)


@pytest.mark.parametrize(
    "nasty",
    [
        *(
            "token",
            "token ",
            "token=",
            "token: [",
            "token: {'",
            'token="',
            'token=\\"',
            "token\\",
            "token: |\n ",
            "token:\n",
        ),
        *("password=a,a;", "=a:", "iscsi:a:", "-", "--token-", "\\", "eyJaaaa-", "[", '{"a":', "token='\\'", "a,", " "),
        *(
            f"switch_id{' ' * 10**5}",
            "-----BEGIN PRIVATE KEY-----",
            "serial: ",
            "basic ",
            "aa:",
            "http://a:",
            "secret_",
            "- token:\n  ",
        ),
    ],
)
def test_no_text_takes_more_than_two_seconds(nasty):
    start = time.process_time()
    redact(f"token: {nasty * (10**5 // len(nasty))}!", "salt")
    assert time.process_time() - start < 2


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
    redacted = redact(line.format(written), "salt")
    assert written not in redacted and redact(mac.hex(":"), "salt") in redacted


@given(
    macs, st.sampled_from(["en", "wl", "ib"]), st.sampled_from(["3: {}: <UP>", "10-{}.link", "\\n{}.100@{}", "dev {}"])
)
def test_a_mac_address_in_an_interface_name_has_the_same_name(mac, prefix, line):
    redacted = redact(line.format(*[f"{prefix}x{mac.hex()}"] * 2), "salt")
    assert mac.hex() not in redacted and f"{prefix}x{redact(mac.hex(':'), 'salt')}" in redacted


@given(st.binary(min_size=8, max_size=8), lines)
def test_a_guid_has_one_name_wherever_it_stands(guid, line):
    digits = guid.hex()
    for written in (guid.hex(":"), guid.hex(":", 2), f"0x{digits}"):
        redacted = redact(line.format(written), "salt")
        assert written not in redacted and redact(f"0x{digits}", "salt") in redacted


@given(st.binary(min_size=14, max_size=20).filter(lambda octets: len(octets) in (14, 20)))
def test_longer_hardware_addresses_are_redacted(octets):
    redacted = redact(f"link/infiniband {octets.hex(':')} MAC={octets.hex(':')} SRC", "salt")
    assert not any(octets.hex(":")[at : at + 17] in redacted for at in range(0, 24, 3))


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
    redacted = redact(line.format(serial), "salt")
    assert serial not in redacted and "<serial-" in redacted
    assert redact(f"serial: {serial}", "salt")[8:] in redacted or "/1" in line
    assert not re.search(r"\.A|/1", redacted)


def test_uuids_and_switch_ids_are_redacted():
    uuid = "5a3c1f00-2222-3333-4444-555566667777"
    switch = "0c42a10300b65f2e"
    text = json.dumps(
        {
            "attributes": {"uuid": {"string": f"GPU-{uuid}"}, "parent": {"string": f"MIG-{uuid}"}},
            **{"vpd": {"uuid": uuid.replace("-", "")}, "systemUUID": uuid, "uid": uuid},
            **{"phys_switch_id": switch, "phys_port_name": "p0"},
        }
    )
    redacted = json.loads(redact(text, "salt"))
    assert redacted.pop("uid") == uuid and redacted["phys_port_name"] == "p0"  # UIDs of objects in the cluster are kept
    assert uuid not in str(redacted) and uuid.replace("-", "") not in str(redacted) and switch not in str(redacted)
    assert redacted["attributes"]["uuid"]["string"].startswith("<gpu-")
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
        "kubelet[1]: user@host 12:30:45@ at=12:30:45@x since=2026-11-21T12:30:45Z@x image=registry:5000/a@sha256:0c42",
        "netroot=iscsi:@san::3260::iqn.2026-01.com.example:x root=/dev/sda",
        "secretName: foo, secretRef: foo, tokenExpirationSeconds: 3600, tokens: 3, token: null, password: ''",
        "automountServiceAccountToken: false, kind: TokenRequest, TokenRequest: failed, token expired",
        '{"secretName": "foo", "secretKeyRef": {"name": "x", "key": "y"}, "tokenExpirationSeconds": 3600}',
        '{"automountServiceAccountToken": false, "kind": "TokenRequest", "token": null}',
        '{"type": "kubernetes.io/service-account-token"}',
        '{"imagePullSecrets": [{"name": "x"}], "token": "", "password": {"length": 3}}',
        '{"secret": {"secretName": "foo", "optional": true}}',
        "secret:\n  secretName: foo\n  optional: true\nx: y",
        "volumes: [{secret: {secretName: foo}}]\ntype: kubernetes.io/service-account-token\nmetadata: x",
        "open /var/run/secrets/kubernetes.io/serviceaccount/token: no such file, token: expired",
        "Failed to watch *v1.Secret: failed to list *v1.Secret: Unauthorized, token: Unauthorized",
        'MountVolume.SetUp failed for volume "a-token-b" : secret "x" not found, tokens_controller.go:385] x',
        "join --token-ttl 24h --token-file /x, a b --token is needed",
    ],
)
def test_text_without_secrets_and_addresses_is_not_redacted(text):
    assert redact(text, "salt") == text


def test_serial_numbers_and_gids_in_json_are_redacted():
    text = json.dumps(
        {"serial": "MT2204X01234", "part": "MCX75310AAS-NEAT", "gid": "fe80:0000:0000:0000:0c42:a1ff:fe03:1"}
    )
    redacted = json.loads(redact(text, "salt"))
    assert (
        redacted["serial"].startswith("<serial-")
        and redacted["part"] == "MCX75310AAS-NEAT"
        and redacted["gid"].startswith("<ip-")
    )
    key = "-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc\n-----END RSA PRIVATE KEY-----"
    assert redact(f"a {key} b", "s") == f"a {REDACTED} b"
