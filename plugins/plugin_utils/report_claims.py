# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# Note: this file is private to the collection.

"""Which claims can allocate which GPU-NIC pairs of a node, as `dra_render` returns and `claims.json` stores it."""

from __future__ import annotations

import json
import typing as t
from dataclasses import dataclass, field

from ..module_utils.topology.boards import board_map
from .report_facts import clean, natural
from .report_formats import FORMATS, Unusable, read_stored
from .report_store import Store
from .values import Json

FILE = "claims.json"
_PAIR_LENGTH = 4  # board, level, and the addresses of GPU and NIC


@dataclass(frozen=True)
class ClaimedPairs:
    """The GPU-NIC pairs of a node that claims can allocate.

    `pairs` maps the addresses of a GPU and a NIC to names of claims and templates.

    `stale` are claims and templates that were rendered for another board map of this node.
    """

    pairs: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    stale: list[str] = field(default_factory=list)

    def at(self, first: str, second: str) -> str:
        """The claims and templates of a pair, whose addresses may be in either order; empty if there are none."""
        return ", ".join(self.pairs.get((first, second)) or self.pairs.get((second, first)) or ())

    def of(self, gpu: str) -> list[tuple[str, str]]:
        """The NICs that claims can allocate with a GPU, each with its claims and templates."""
        return [(nic, ", ".join(names)) for (address, nic), names in self.pairs.items() if address == gpu]


NO_CLAIMS = ClaimedPairs()


class Claims:
    """All claims of a report, by the site that rendered them (`dra_claims_site`).

    `rendered` replaces the stored claims of its sites. Raises Unusable if a file or `rendered` cannot be used.
    """

    def __init__(self, store: Store, rendered: t.Mapping[str, object] | None) -> None:
        self.sites = _stored(store)
        if rendered is not None:
            for site, uses in rendered.items():
                self.sites[str(site)] = _rendered(site, uses)
            self.sites = {site: uses for site, uses in sorted(self.sites.items()) if uses}
            if self.sites or store.path(FILE).exists():
                store.write(FILE, json.dumps(FORMATS.write({"sites": self.sites}), indent=1).encode() + b"\n")
        self._by_host: dict[str, list[tuple[str, str, Json]]] = {}
        for uses in self.sites.values():
            for use in uses:
                name = clean(f"{use['claim'].rpartition('/')[0]}/{use['name']}")
                for board, nodes in use["boards"].items():
                    for host in nodes:
                        self._by_host.setdefault(host, []).append((name, board, use))

    def of(self, host: str, facts: str) -> ClaimedPairs:
        """The pairs of a host. `facts` is the JSON text of its facts."""
        if host not in self._by_host:
            return NO_CLAIMS
        board = _board(facts)
        names_by_pair: dict[tuple[str, str], list[str]] = {}
        stale = set()
        for name, rendered, use in self._by_host[host]:
            if rendered != board:
                stale.add(name)
                continue
            for shape, _level, gpu, nic in use["pairs"]:
                names = names_by_pair.setdefault((gpu, nic), [])
                if shape == board and name not in names:
                    names.append(name)
        pairs = {pair: sorted(names, key=natural) for pair, names in sorted(names_by_pair.items()) if names}
        return ClaimedPairs(pairs, sorted(stale, key=natural))


def _stored(store: Store) -> dict[str, list[Json]]:
    """The stored claims by site. Raises Unusable."""
    path = store.path(FILE)
    try:
        sites = read_stored(json.loads(path.read_bytes()), path)["sites"]
        return {str(site): _stored_fields(uses) for site, uses in sites.items()}
    except FileNotFoundError:
        return {}
    except Unusable:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Unusable(
            f"{path} is damaged: {error}. Remove it: lanewise.dra.claims writes it again when it renders the claims."
        ) from None


def _rendered(site: str, uses: object) -> list[Json]:
    """The fields of a site's rendered claims. Raises Unusable if `dra_render` did not return `uses`."""
    try:
        return _stored_fields(uses)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Unusable(
            f"claims.{site}: this is not the `boards` that dra_render returns ({error}). Pass that value unchanged."
        ) from None


def _stored_fields(uses: object) -> list[Json]:
    """The fields of a site's claims that the report stores.

    Raises ValueError, KeyError, TypeError or AttributeError if `uses` are no claims.
    """
    fields = []
    for use in t.cast("list[Json]", uses):
        boards = {str(board): [str(node) for node in nodes] for board, nodes in use["boards"].items()}
        pairs = [[str(word) for word in pair] for pair in use["pairs"]]
        if not all(len(pair) == _PAIR_LENGTH for pair in pairs):
            raise ValueError("a pair has no board, level, GPU and NIC")
        named = {key: str(use[key]) for key in ("claim", "name", "form")}
        fields.append({**named, "boards": boards, "pairs": pairs})
    return fields


def _board(facts: str) -> str:
    """The name of the board map in stored facts; empty if they have none."""
    try:
        return board_map(json.loads(facts)).shape
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return ""
