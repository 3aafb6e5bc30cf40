# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The content of a service account token. tests/cluster/test_driver_cluster.py tests the renewal, which needs an API
server."""

from __future__ import annotations

import base64
import json
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.common.waiting import until
from hypothesis import given
from hypothesis import strategies as st
from lanewise_driver.api.access import Access, AccessError
from lanewise_driver.api.cluster import Cluster
from lanewise_driver.api.token import Token, TokenRenewer, read

CLAIMS = {
    "iat": 1000,
    "exp": 5000,
    "kubernetes.io": {
        "namespace": "lanewise-system",
        "serviceaccount": {"name": "lanewise-driver", "uid": "a"},
        "node": {"name": "worker-1", "uid": "u"},
    },
}


def token(claims: t.Any) -> str:
    """A JSON Web Token with these claims and without a valid signature."""
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"e30.{body}.signature\n"


def test_a_bound_token_has_its_node_and_is_due_after_half_of_its_lifetime() -> None:
    found = read(token(CLAIMS))
    assert found == Token("lanewise-system", "lanewise-driver", "worker-1", "u", 1000, 5000)
    assert found.due() == 3000  # the other half is left in case the API server is unavailable


def test_an_unbound_token_has_no_node() -> None:
    unbound = {name: value for name, value in CLAIMS["kubernetes.io"].items() if name != "node"}  # type: ignore[attr-defined]
    assert read(token({**CLAIMS, "kubernetes.io": unbound})).node == ""


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "a.b.c",
        "a..c",
        "a.é.c",
        token([]),
        token({}),
        token({**CLAIMS, "exp": "x"}),
        token({**CLAIMS, "exp": float("nan")}),
    ],
)
def test_invalid_tokens_are_refused(text: str) -> None:
    with pytest.raises(AccessError, match="not a valid service account token"):
        read(text)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*CLAIMS, "name", "node"]), inner),
    max_leaves=6,
)


@given(_JSON | st.fixed_dictionaries({"iat": _JSON, "exp": _JSON, "kubernetes.io": _JSON}))
def test_any_claims_are_read_or_raise_an_access_error(claims: t.Any) -> None:
    try:
        read(token(claims))
    except AccessError:
        pass


def test_a_token_that_cannot_be_renewed_is_kept_and_the_problem_reported(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(token(CLAIMS))
    access = Access("https://127.0.0.1:1", token_file=path)
    renewal = TokenRenewer(Cluster(lambda: access, "lanewise.dev", "worker-1"), path)
    renewal.start()
    until(lambda: renewal.problem)
    assert "does not answer" in renewal.problem and renewal.expires == 5000
    renewal.stop()
    assert path.read_text() == token(CLAIMS)
