# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# Note: this file is private to the collection.

"""Merges the facts of a run into a report folder, and writes the pages and tables from all facts in it.

The same facts always give the same files, byte for byte.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import typing as t
from dataclasses import dataclass, field

from . import report_tables as tables
from .report_claims import NO_CLAIMS, Claims
from .report_compare import PeerGroup, changes, differences, fingerprint_of, group_peers, hardware_of
from .report_drawing import draw
from .report_facts import SEVERITIES, View, clean, natural, read_facts
from .report_formats import FORMATS, check_facts_version
from .report_nodes import Counts, DistinctTopology, Node, NodeFinding, counts_of, finding_groups, node_row
from .report_pages import Pages
from .report_store import Store, Stored, facts_text, file_name
from .values import Json, Result

_MAX_DRAWINGS = 24  # of distinct topologies on the fleet page
_MAX_DIFF_LINES = 200

#: States of a node in the latest run that tried to probe it, other than an empty string for "probed".
UNREACHABLE, FAILED, ABSENT = "unreachable", "failed", "no facts"


class PageState(t.TypedDict):
    """A digest of the input of a node's page and one of the page, so that the next run renders only changed pages."""

    key: str
    sha256: str


@dataclass
class Request:
    """The input of one update of the report. `play` are the hosts that this run tried to probe.

    `source` is where the inventory was read from. Nodes of other inventories are kept. `claims` are the claims by site,
    as `report_claims.Claims` takes them; None keeps those of earlier runs.
    """

    facts: dict[str, Json]
    play: set[str]
    inventory: set[str]
    unreachable: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    source: str = ""
    prune: bool = True
    now: str = ""
    claims: t.Mapping[str, object] | None = None


@dataclass
class _Merged:
    """The nodes of the report after a run.

    `times` has the time of the last change of facts by host, `absent` the state of hosts that were not probed, and
    `fresh` the nodes whose facts changed. `missing` are stored hosts that are neither in the inventory nor in the
    request; `dropped` are those of them that a run with this inventory stored. `origins` has the inventory of each
    host.
    """

    times: dict[str, str]
    absent: dict[str, str]
    fresh: dict[str, Stored]
    missing: list[str]
    dropped: list[str]
    origins: dict[str, str]


@dataclass
class _Rows:
    """Rows of devices.csv and findings.csv."""

    devices: list[tables.Row] = field(default_factory=list)
    findings: list[tables.Row] = field(default_factory=list)


class Site:
    """One report folder."""

    def __init__(self, folder: str, pages: Pages, title: str, dry: bool = False) -> None:
        self.store = Store(folder, dry)
        self.pages = pages
        self.title = clean(title)
        self.diff: list[str] = []
        self._view = functools.lru_cache(maxsize=16)(self._load_view)
        self._fresh: dict[str, Stored] = {}

    @property
    def changed(self) -> bool:
        return self.store.changed

    def _facts_text(self, host: str) -> str:
        stored = self._fresh.get(host) or self.store.node(host)
        return stored.facts if stored else "{}"

    def _load_view(self, host: str) -> View:
        return _view_of(self._facts_text(host))

    def update(self, request: Request) -> Result:
        """Merge the facts of a run into the store, write what changed, and return the counts and a summary.

        A dry site writes nothing, but sets `changed` and `diff` as a real run does. Raises `OSError` if the folder
        cannot be written, Unusable if a newer release wrote it or `site.json` is damaged, and `jinja2.TemplateError` if
        a template is faulty.
        """
        self.store.check()
        for host, facts in request.facts.items():
            check_facts_version(facts.get("schema_version"), host)
        before = self.store.site()
        merged = self._merge(request, before)
        self._claims = Claims(self.store, request.claims)
        self._fresh = merged.fresh
        rows = _Rows()
        nodes = [
            self._node(host, merged.times.get(host, ""), merged.absent.get(host, ""), rows)
            for host in sorted({*merged.times, *merged.absent}, key=natural)
        ]
        groups = self._compare(nodes)
        counts = counts_of(nodes, groups)
        self._write(nodes, groups, counts, rows, merged, before)
        if self.changed and not self.diff:
            self.diff.append("~ pages written again; the facts are the same")
        summary = self._summary(nodes, counts)
        if request.prune:
            of_others = [host for host in merged.missing if host not in merged.dropped]
            for label, hosts in (
                ("dropped, not in this inventory", merged.dropped),
                ("kept, of other inventories", of_others),
            ):
                if hosts:
                    summary.insert(-1, f"{label}: {_some_hosts(hosts)}")
        return {"counts": counts, "summary": summary}

    def _merge(self, request: Request, before: Json) -> _Merged:
        """Compare the facts of a run with the stored ones, and add the differences to `diff`."""
        stored = self.store.hosts(request.facts)
        times = dict(stored)
        fresh: dict[str, Stored] = {}
        for host in sorted(request.facts, key=natural):
            text = facts_text(request.facts[host])
            old = self.store.node(host) if host in stored else None
            if old and old.facts == text:
                continue
            fresh[host] = Stored(host, request.now, text)
            times[host] = request.now
            self._note_changes(host, old.facts if old else None, text)
        known = {*request.facts, *request.play, *request.inventory}
        missing = [host for host in stored if host not in known]
        origins = _origins(before)
        dropped = [host for host in missing if origins.get(host, request.source) == request.source]
        dropped = dropped if request.prune else []
        for host in dropped:
            times.pop(host)
            self.diff.append(f"- {clean(host)}: no longer in the inventory")
        if request.source:
            origins.update(dict.fromkeys([*request.inventory, *request.facts], request.source))
        return _Merged(times, _absent(request, before, times), fresh, missing, dropped, origins)

    def _note_changes(self, host: str, old: str | None, new: str) -> None:
        if len(self.diff) < _MAX_DIFF_LINES:
            lines = changes(_view_of(old) if old is not None else None, _view_of(new))
            self.diff += [f"{line[:2]}{clean(host)}: {line[2:]}" for line in lines[:20]]
            if len(lines) > 20:
                self.diff.append(f"~ {clean(host)}: and {len(lines) - 20} more changes")
        elif self.diff[-1] != "~ and more nodes":
            self.diff.append("~ and more nodes")

    def _write(
        self, nodes: list[Node], groups: list[PeerGroup], counts: Counts, rows: _Rows, merged: _Merged, before: Json
    ) -> None:
        """Write every file whose content changed. ``site.json`` is written after the files that it describes."""
        store = self.store
        for node in merged.fresh.values():
            store.write_node(node)
        rendered = self._write_pages(nodes, before)
        for name, columns, table_rows in (
            ("nodes.csv", tables.NODE_COLUMNS, [node_row(node) for node in nodes]),
            ("devices.csv", tables.DEVICE_COLUMNS, rows.devices),
            ("findings.csv", tables.FINDING_COLUMNS, rows.findings),
        ):
            store.write(name, tables.csv_bytes(columns, table_rows))
        page = self.pages.index(
            nodes=nodes,
            by_host={node.host: node for node in nodes},
            peer_groups=groups,
            counts=counts,
            findings=finding_groups(nodes),
            topologies=self._topologies(nodes),
            absent=[node for node in nodes if node.status],
        )
        store.write("index.html", page)
        store.write("site.json", self._site_file(nodes, groups, counts, rendered, merged.origins))
        for host in merged.dropped:
            store.remove_node(host)

    def _node(self, host: str, changed: str, status: str, rows: _Rows) -> Node:
        """The data of a node. Adds its devices and findings to `rows`."""
        node = Node(host=host, shown=clean(host, 253), file=file_name(host), status=status, changed=changed)
        if not changed:
            return node
        text = self._facts_text(host)
        view = _view_of(text)
        node.facts_digest = hashlib.sha256(text.encode()).hexdigest()
        node.claimed = self._claims.of(host, text)
        system = view.topology.system
        node.without_devices = view.without_devices
        node.product, node.hardware = system.product or system.board or "", hardware_of(view)
        node.gpu_model, node.group_levels, node.fingerprint = view.gpu_model, view.group_levels, fingerprint_of(view)
        node.gpus, node.nics = view.count("gpu", "accelerator"), view.count("nic")
        node.nvme = view.count("nvme")
        for finding in view.topology.findings:
            node.findings.append(NodeFinding(finding.severity, finding.id, finding.summary, finding.action))
            rows.findings.append(
                [
                    node.shown,
                    finding.severity,
                    finding.id,
                    finding.summary,
                    finding.action,
                    " ".join(finding.devices),
                    "; ".join(finding.evidence),
                ]
            )
        rows.devices.extend(tables.device_rows(node.shown, view))
        node.findings.sort(key=lambda finding: (SEVERITIES.index(finding.severity), finding.id))
        return node

    def _compare(self, nodes: list[Node]) -> list[PeerGroup]:
        """Group nodes with their peers, and set how each outlier differs. Equal topologies are compared once."""
        probed = [node for node in nodes if node.facts_digest]
        by_host = {node.host: node for node in probed}
        groups = group_peers(probed)
        for group in groups:
            for host in group.hosts:
                by_host[host].peer_group = group.name
            if group.usual is None:
                continue
            usual = self._view(group.by_fingerprint[group.usual][0])
            for fingerprint, hosts in group.by_fingerprint.items():
                if fingerprint != group.usual:
                    lines = differences(self._view(hosts[0]), usual)
                    lines = lines or ["The fingerprints differ in a detail that the report does not show."]
                    for host in hosts:
                        by_host[host].differences = lines
        return groups

    def _write_pages(self, nodes: list[Node], before: Json) -> dict[str, PageState]:
        """Render the node pages whose facts, state, peers or templates changed. Returns the state of each page."""
        known = before.get("pages")
        known = known if isinstance(known, dict) else {}
        pages: dict[str, PageState] = {}
        for node in nodes:
            if not node.facts_digest:
                continue
            name = f"nodes/{node.file}.html"
            key = hashlib.sha256(
                json.dumps(
                    [
                        self.pages.version,
                        node.host,
                        node.status,
                        node.changed,
                        node.facts_digest,
                        node.differences,
                        node.peer_group,
                        *([repr(node.claimed)] if node.claimed != NO_CLAIMS else ()),
                    ]
                ).encode()
            ).hexdigest()
            entry = known.get(node.file)
            if isinstance(entry, dict) and entry.get("key") == key:
                with contextlib.suppress(OSError):
                    if hashlib.sha256(self.store.path(name).read_bytes()).hexdigest() == entry.get("sha256"):
                        pages[node.file] = {"key": key, "sha256": entry["sha256"]}
                        continue
            content = self.pages.node(self._load_view(node.host), node=node)
            pages[node.file] = {"key": key, "sha256": hashlib.sha256(content).hexdigest()}
            self.store.write(name, content)
        return pages

    def _topologies(self, nodes: list[Node]) -> list[DistinctTopology]:
        """Each distinct topology with its nodes, the most frequent first. The first ones have a drawing."""
        by_fingerprint: dict[str, list[Node]] = {}
        for node in nodes:
            if node.facts_digest:
                by_fingerprint.setdefault(node.fingerprint, []).append(node)
        result = []
        for number, members in enumerate(
            sorted(by_fingerprint.values(), key=lambda group: (-len(group), natural(group[0].host)))
        ):
            first = members[0]
            drawing = ""
            if number < _MAX_DRAWINGS:
                view = self._view(first.host)
                drawing = draw(view, f"Topology of {first.shown}", prefix=f"shape{number}")
            result.append(DistinctTopology(first, members, drawing))
        return result

    def _site_file(
        self,
        nodes: list[Node],
        groups: list[PeerGroup],
        counts: Counts,
        pages: dict[str, PageState],
        origins: dict[str, str],
    ) -> bytes:
        site: Json = {
            "title": self.title,
            "counts": counts,
            "nodes": [
                {
                    "name": node.host,
                    "file": node.file,
                    "status": node.status or "probed",
                    "inventory": origins.get(node.host, ""),
                    "product": node.product,
                    "gpu_model": node.gpu_model,
                    "gpus": node.gpus,
                    "nics": node.nics,
                    "nvme": node.nvme,
                    "groups": node.group_levels,
                    "fingerprint": node.fingerprint,
                    "findings": node.severities,
                    "differences": node.differences,
                    "facts_changed": node.changed,
                }
                for node in nodes
            ],
            "peers": [
                {"name": group.name, "nodes": group.hosts, "usual_fingerprint": group.usual, "outliers": group.outliers}
                for group in groups
            ],
            "absent": {node.host: node.status for node in nodes if node.status},
            "pages": pages,
        }
        return json.dumps(FORMATS.write(site), indent=1).encode() + b"\n"

    def _summary(self, nodes: list[Node], counts: Counts) -> list[str]:
        """A few lines about the report for a terminal."""
        numbers = [(counts["findings"][severity], severity) for severity in SEVERITIES]
        findings = ", ".join(_counted(number, severity) for number, severity in numbers if number) or "none"
        lines = [
            f"{counts['nodes']} nodes, {counts['gpus']} GPUs, {counts['nics']} NICs, "
            f"{counts['shapes']} distinct topologies in {counts['groups']} peer groups",
            f"findings: {findings}",
        ]
        outliers = [node for node in nodes if node.differences]
        lines += [
            f"outlier {node.shown}: {node.differences[0]}"
            + (f" (and {len(node.differences) - 1} more)" if len(node.differences) > 1 else "")
            for node in outliers[:10]
        ]
        if len(outliers) > 10:
            lines.append(f"and {len(outliers) - 10} more outliers")
        for status in (UNREACHABLE, FAILED, ABSENT):
            hosts = [node.shown for node in nodes if node.status == status]
            if hosts:
                lines.append(
                    f"{status}: {', '.join(hosts[:10])}" + (f" and {len(hosts) - 10} more" * (len(hosts) > 10))
                )
        lines.append(f"report: {self.store.path('index.html')}")
        return lines


def _counted(number: int, severity: str) -> str:
    """A number of findings of a severity, such as `4 warnings`."""
    return f"{number} {severity}{'s' if number > 1 and severity != 'info' else ''}"


def _absent(request: Request, before: Json, times: dict[str, str]) -> dict[str, str]:
    """The states of hosts that were not probed. Hosts that this run did not try to probe keep their earlier state."""
    states = {}
    earlier = before.get("absent")
    for host, state in (earlier if isinstance(earlier, dict) else {}).items():
        known = host in request.inventory or host in times or not request.prune
        if host not in request.play and known and state in (UNREACHABLE, FAILED, ABSENT):
            states[host] = state
    for host in request.play - set(request.facts):
        states[host] = ABSENT
    states.update(dict.fromkeys(request.failed, FAILED))
    states.update(dict.fromkeys(request.unreachable, UNREACHABLE))
    return states


def _view_of(text: str) -> View:
    facts = json.loads(text)
    return View(read_facts(facts if isinstance(facts, dict) else {}))


def _origins(site: Json) -> dict[str, str]:
    """Where the inventory of each stored node was read from, if the report records it."""
    nodes = site.get("nodes")
    origins = {}
    for node in nodes if isinstance(nodes, list) else ():
        if isinstance(node, dict) and isinstance(node.get("inventory"), str) and node["inventory"]:
            origins[str(node.get("name"))] = node["inventory"]
    return origins


def _some_hosts(hosts: t.Sequence[str]) -> str:
    return ", ".join(clean(host) for host in hosts[:10]) + (f" and {len(hosts) - 10} more" * (len(hosts) > 10))
