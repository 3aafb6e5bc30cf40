# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# Note: this file is private to the collection.

"""Keep the facts of a site in a folder, and write the site report from them.

The folder is its own store: C(nodes/NAME.json) holds a node's facts and the time at which they last changed. Every
other file is made from the store, byte for byte the same for the same facts.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import os
import pathlib
import re
import typing as t
from collections import Counter
from dataclasses import dataclass, field

from . import report_tables as tables
from .report_compare import Peers, build_of, changes, differences, group_peers, shape_of
from .report_drawing import draw
from .report_facts import SEVERITIES, View, clean, natural, read_facts
from .report_forms import FORMS, Unusable, check_facts, of_release, version_in
from .report_pages import Pages

_SPLIT = b'\n"facts": '
_DRAWINGS = 24  # distinct topologies drawn on the fleet page
_DIFF_LINES = 200
_SAFE_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,98}[a-z0-9])?")

#: States of a node in the latest run that reached for it, other than an empty string for "probed".
UNREACHABLE, FAILED, ABSENT = "unreachable", "failed", "no facts"


def file_name(host: str) -> str:
    """Return a file name stem for a host: the host's own name where that is safe everywhere, and always unique.

    A name with other characters, or with capitals that some file systems ignore, gets a part of its SHA-256.
    """
    if _SAFE_NAME.fullmatch(host) and ".." not in host:
        return host
    plain = re.sub(r"[^a-z0-9_-]+", "-", host.lower()).strip("-_")[:60]
    digest = hashlib.sha256(host.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{plain or 'node'}-{digest}"


def _plain(value: t.Any, depth: int = 0) -> t.Any:
    """Return what JSON can carry of a value that it cannot carry as a whole."""
    if depth > 40 or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if isinstance(value, dict):
        return {str(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, depth + 1) for item in value]
    return value if value is None or isinstance(value, (str, int, float, bool)) else None


def _dump(facts: t.Any) -> str:
    """Return facts as JSON with a line for each function, interface, GPU …, which diffs well and parses fast."""
    encode = functools.partial(json.dumps, sort_keys=True, allow_nan=False)
    try:
        encode(facts)
    except (TypeError, ValueError, RecursionError):
        facts = _plain(facts)
    sections = []
    for name in sorted(facts):
        value = facts[name]
        if isinstance(value, dict) and value:
            body = ",\n  ".join(f"{encode(str(key))}: {encode(value[key])}" for key in sorted(value))
            text = "{\n  " + body + "\n }"
        elif isinstance(value, list) and value:
            text = "[\n  " + ",\n  ".join(encode(item) for item in value) + "\n ]"
        else:
            text = encode(value)
        sections.append(f" {encode(str(name))}: {text}")
    return "{\n" + ",\n".join(sections) + "\n}"


@dataclass
class Node:
    """What the fleet page and the tables need to know of one node."""

    host: str  # as in the inventory
    shown: str  # cleaned for people
    file: str
    status: str = ""
    changed: str = ""
    digest: str = ""
    bare: bool = False  # the facts hold nothing to judge
    build: str = ""
    product: str = ""
    gpu_model: str = ""
    gpus: int = 0
    nics: int = 0
    nvme: int = 0
    levels: str = ""
    shape: str = ""
    findings: list[tuple[str, str, str, str]] = field(default_factory=list)  # severity, id, summary, action
    differences: list[str] = field(default_factory=list)
    peers: str = ""

    @property
    def severities(self) -> dict[str, int]:
        counts = Counter(finding[0] for finding in self.findings)
        return {severity: counts[severity] for severity in SEVERITIES}


@dataclass
class Request:
    """What a run of the report was given. C(play) are the hosts that this run reached for.

    C(source) is where the inventory was read from: nodes that came from another one are not this one's to drop.
    """

    facts: dict[str, t.Any]
    play: set[str]
    inventory: set[str]
    unreachable: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    source: str = ""
    prune: bool = True
    now: str = ""


class Site:
    """One report folder."""

    def __init__(self, folder: str, pages: Pages, title: str, dry: bool = False) -> None:
        self.folder = pathlib.Path(folder)
        self.pages = pages
        self.title = clean(title)
        self.dry = dry
        self.changed = False
        self.warnings: list[str] = []
        self.diff: list[str] = []
        self._view = functools.lru_cache(maxsize=16)(self._load_view)
        self._fresh: dict[str, tuple[str, str]] = {}  # host -> facts as JSON, time of their last change

    # The store

    def _path(self, name: str) -> pathlib.Path:
        return self.folder / name

    def _store_path(self, host: str) -> pathlib.Path:
        return self._path(f"nodes/{file_name(host)}.json")

    def _read_store(self, path: pathlib.Path) -> tuple[str, str, str] | None:
        """Return host, time of the last change and facts as JSON of a stored node, or None for a foreign file.

        Raises Unusable where only a newer release can read it.
        """
        try:
            raw = path.read_bytes()
        except OSError:
            return None
        head, found, tail = raw.partition(_SPLIT)
        try:
            known = of_release(json.loads(head.rstrip(b",") + b"}"), path)
            host, changed = known["host"], known["facts_changed"]
            if not found or file_name(host) != path.stem or not tail.endswith(b"}\n}\n"):
                raise ValueError
            return host, str(changed), tail[:-3].decode("ascii")
        except Unusable:
            raise
        except (ValueError, KeyError, TypeError, AttributeError):
            self.warnings.append(f"{path}: not a stored node, left alone")
            return None

    def _stored(self, probed: t.Collection[str] = ()) -> dict[str, str]:
        """Return the hosts in the store, each with the time at which its facts last changed. Raises Unusable, but not
        for those that were C(probed) again."""
        hosts = {}
        for path in sorted(self._path("nodes").glob("*.json")):
            known = self._read_store(path)
            if known and known[0] not in probed:
                check_facts(version_in(known[2]), f"{known[0]} ({path})")
            if known:
                hosts[known[0]] = known[1]
        return hosts

    def _facts_text(self, host: str) -> str:
        if host in self._fresh:
            return self._fresh[host][0]
        known = self._read_store(self._store_path(host))
        return known[2] if known else "{}"

    def _load_view(self, host: str) -> View:
        return _view_of(self._facts_text(host))

    def _write(self, name: str, content: bytes) -> None:
        """Replace a file, in one step, if its content differs. An interrupted run leaves the old file whole."""
        path = self._path(name)
        with contextlib.suppress(OSError):
            if path.read_bytes() == content:
                return
        self.changed = True
        if self.dry:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(path.name + ".tmp")
        temporary.unlink(missing_ok=True)
        with open(temporary, "xb") as stream:
            stream.write(content)
        os.replace(temporary, path)

    def _remove(self, name: str) -> None:
        path = self._path(name)
        if path.exists():
            self.changed = True
            if not self.dry:
                path.unlink()

    # One run

    def update(self, request: Request) -> dict[str, t.Any]:
        """Merge the facts of a run into the store, write what changed, and return the counts and a summary.

        Nothing is written for a dry site, while C(changed) and C(diff) are those of a real run. Raises C(OSError)
        where the folder cannot be written, Unusable where a newer release wrote it or C(site.json) is damaged, and
        C(jinja2.TemplateError) where a template is faulty.
        """
        if (self.folder / "index.html").exists() and not (self.folder / "site.json").exists():
            raise FileExistsError(f"{self.folder} holds an index.html that is no report; choose another folder")
        for host, facts in request.facts.items():
            check_facts(facts.get("schema_version"), host)
        before = self._site_file()
        stored = self._stored(request.facts)
        times = self._merge(request, stored)
        missing = [host for host in stored if host not in request.facts and host not in request.inventory]
        sources = _sources(before)
        gone = [host for host in missing if sources.get(host, request.source) == request.source]
        self._origins = {**sources, **dict.fromkeys(request.inventory, request.source)} if request.source else sources
        if request.prune:
            for host in gone:
                times.pop(host)
                self.diff.append(f"- {clean(host)}: no longer in the inventory")
        status = self._status(request, before, times)
        rows: dict[str, list[list[t.Any]]] = {"devices": [], "findings": []}
        nodes = [
            self._node(host, times.get(host, ""), status.get(host, ""), rows)
            for host in sorted({*times, *status}, key=natural)
        ]
        groups = self._compare(nodes)

        for host, (text, changed) in self._fresh.items():
            head = json.dumps(FORMS.write({"host": host, "facts_changed": changed}))
            self._write(f"nodes/{file_name(host)}.json", head[:-1].encode() + b"," + _SPLIT + text.encode() + b"\n}\n")
        rendered = self._write_pages(nodes, before)
        self._write_tables(nodes, rows)
        counts = _counts(nodes, groups)
        self._write(
            "index.html",
            self.pages.index(
                nodes=nodes,
                by_host={node.host: node for node in nodes},
                groups=groups,
                counts=counts,
                findings=_by_finding(nodes),
                shapes=self._shapes(nodes),
                absent=[node for node in nodes if node.status],
            ),
        )
        self._write("site.json", self._site(nodes, groups, counts, rendered))
        if request.prune:
            for host in gone:
                self._remove(f"nodes/{file_name(host)}.html")
                self._remove(f"nodes/{file_name(host)}.json")
        if self.changed and not self.diff:
            self.diff.append("~ pages written anew; the facts are the same")
        summary = self._summary(nodes, counts)
        if request.prune and gone:
            summary.insert(-1, f"dropped, not in this inventory: {_some_hosts(gone)}")
        if request.prune and len(gone) < len(missing):
            summary.insert(
                -1, f"kept, of other inventories: {_some_hosts([one for one in missing if one not in gone])}"
            )
        return {"counts": counts, "summary": summary}

    def _merge(self, request: Request, stored: dict[str, str]) -> dict[str, str]:
        """Take in the run's facts; return every host with facts and the time at which these last changed."""
        times = dict(stored)
        for host in sorted(request.facts, key=natural):
            text = _dump(request.facts[host])
            old = self._read_store(self._store_path(host)) if host in stored else None
            if old and old[2] == text:
                continue
            self._fresh[host] = (text, request.now)
            times[host] = request.now
            if len(self.diff) < _DIFF_LINES:
                lines = changes(_view_of(old[2]) if old else None, _view_of(text))
                self.diff += [f"{line[:2]}{clean(host)}: {line[2:]}" for line in lines[:20]]
                if len(lines) > 20:
                    self.diff.append(f"~ {clean(host)}: and {len(lines) - 20} more changes")
            elif self.diff[-1] != "~ and more nodes":
                self.diff.append("~ and more nodes")
        return times

    def _status(self, request: Request, before: dict[str, t.Any], times: dict[str, str]) -> dict[str, str]:
        """Return the hosts that have a state: those of this run, and the earlier ones that it did not reach for."""
        status = {}
        earlier = before.get("absent")
        for host, word in (earlier if isinstance(earlier, dict) else {}).items():
            known = host in request.inventory or host in times or not request.prune
            if host not in request.play and known and word in (UNREACHABLE, FAILED, ABSENT):
                status[host] = word
        for host in request.play - set(request.facts):
            status[host] = ABSENT
        status.update(dict.fromkeys(request.failed, FAILED))
        status.update(dict.fromkeys(request.unreachable, UNREACHABLE))
        return status

    def _node(self, host: str, changed: str, status: str, rows: dict[str, list[list[t.Any]]]) -> Node:
        node = Node(host=host, shown=clean(host, 253), file=file_name(host), status=status, changed=changed)
        if not changed:
            return node
        text = self._facts_text(host)
        view = _view_of(text)
        node.digest = hashlib.sha256(text.encode()).hexdigest()
        system = view.topology.system
        node.bare = view.is_bare
        node.product, node.build = system.product or system.board or "", build_of(view)
        node.gpu_model, node.levels, node.shape = view.gpu_model, view.levels, shape_of(view)
        node.gpus, node.nics = view.count("gpu", "accelerator"), view.count("nic")
        node.nvme = view.count("nvme")
        for finding in view.topology.findings:
            node.findings.append((finding.severity, finding.id, finding.summary, finding.action))
            rows["findings"].append(
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
        rows["devices"].extend(tables.device_rows(node.shown, view))
        node.findings.sort(key=lambda finding: (SEVERITIES.index(finding[0]), finding[1]))
        return node

    def _compare(self, nodes: list[Node]) -> list[Peers]:
        """Group nodes with their peers, and say how each outlier differs. Nodes of one shape are compared once."""
        probed = [node for node in nodes if node.digest]
        names = {node.host: node for node in probed}
        groups = group_peers(probed)
        for group in groups:
            for host in group.hosts:
                names[host].peers = group.name
            if group.usual is None:
                continue
            usual = self._view(group.shapes[group.usual][0])
            for shape, hosts in group.shapes.items():
                if shape != group.usual:
                    found = differences(self._view(hosts[0]), usual)
                    found = found or ["The fingerprints differ, in something that this comparison does not name."]
                    for host in hosts:
                        names[host].differences = found
        return groups

    def _write_pages(self, nodes: list[Node], before: dict[str, t.Any]) -> dict[str, dict[str, str]]:
        """Render the node pages whose facts, state, peers or templates changed; return how to tell next time."""
        known = before.get("pages")
        known = known if isinstance(known, dict) else {}
        pages: dict[str, dict[str, str]] = {}
        for node in nodes:
            if not node.digest:
                continue
            name = f"nodes/{node.file}.html"
            key = hashlib.sha256(
                json.dumps(
                    [
                        self.pages.version,
                        node.host,
                        node.status,
                        node.changed,
                        node.digest,
                        node.differences,
                        node.peers,
                    ]
                ).encode()
            ).hexdigest()
            entry = known.get(node.file)
            if isinstance(entry, dict) and entry.get("key") == key:
                with contextlib.suppress(OSError):
                    if hashlib.sha256(self._path(name).read_bytes()).hexdigest() == entry.get("sha256"):
                        pages[node.file] = {"key": key, "sha256": entry["sha256"]}
                        continue
            content = self.pages.node(self._load_view(node.host), node=node)
            pages[node.file] = {"key": key, "sha256": hashlib.sha256(content).hexdigest()}
            self._write(name, content)
        return pages

    def _write_tables(self, nodes: list[Node], rows: dict[str, list[list[t.Any]]]) -> None:
        self._write("nodes.csv", tables.csv_of(tables.NODE_COLUMNS, [self._cells(node) for node in nodes]))
        self._write("devices.csv", tables.csv_of(tables.DEVICE_COLUMNS, rows["devices"]))
        self._write("findings.csv", tables.csv_of(tables.FINDING_COLUMNS, rows["findings"]))

    @staticmethod
    def _cells(n: Node) -> list[t.Any]:
        """A row of nodes.csv."""
        return [
            n.shown,
            n.status,
            n.product,
            n.gpu_model,
            n.gpus,
            n.nics,
            n.nvme,
            n.levels,
            *(n.severities[severity] for severity in SEVERITIES),
            "yes" if n.differences else "no",
            n.shape,
            n.changed,
        ]

    def _shapes(self, nodes: list[Node]) -> list[dict[str, t.Any]]:
        """Return each distinct topology with its hosts, the most frequent first, the first ones drawn."""
        shapes: dict[str, list[Node]] = {}
        for node in nodes:
            if node.digest:
                shapes.setdefault(node.shape, []).append(node)
        result = []
        for number, members in enumerate(sorted(shapes.values(), key=lambda m: (-len(m), natural(m[0].host)))):
            first = members[0]
            drawing = ""
            if number < _DRAWINGS:
                view = self._view(first.host)
                drawing = draw(view, f"Topology of {first.shown}", prefix=f"shape{number}")
            result.append({"first": first, "nodes": members, "drawing": drawing})
        return result

    def _site_file(self) -> dict[str, t.Any]:
        path = self._path("site.json")
        try:
            return of_release(json.loads(path.read_bytes()), path)
        except FileNotFoundError:
            return {}
        except Unusable:
            raise
        except (ValueError, RecursionError) as error:
            raise Unusable(
                f"{path} is damaged: {error}. It says which inventory each node is of. Bring it back, or remove it and "
                "index.html: both are written again from the folder nodes, and nodes of other inventories are dropped."
            ) from None

    def _site(
        self, nodes: list[Node], groups: list[Peers], counts: dict[str, t.Any], pages: dict[str, dict[str, str]]
    ) -> bytes:
        site = {
            "title": self.title,
            "counts": counts,
            "nodes": [
                {
                    "name": n.host,
                    "file": n.file,
                    "status": n.status or "probed",
                    "inventory": self._origins.get(n.host, ""),
                    "product": n.product,
                    "gpu_model": n.gpu_model,
                    "gpus": n.gpus,
                    "nics": n.nics,
                    "nvme": n.nvme,
                    "groups": n.levels,
                    "fingerprint": n.shape,
                    "findings": n.severities,
                    "differences": n.differences,
                    "facts_changed": n.changed,
                }
                for n in nodes
            ],
            "peers": [
                {"name": g.name, "nodes": g.hosts, "usual_fingerprint": g.usual, "outliers": g.outliers} for g in groups
            ],
            "absent": {n.host: n.status for n in nodes if n.status},
            "pages": pages,
        }
        return json.dumps(FORMS.write(site), indent=1).encode() + b"\n"

    def _summary(self, nodes: list[Node], counts: dict[str, t.Any]) -> list[str]:
        found = ", ".join(f"{counts['findings'][s]} {s}" for s in SEVERITIES if counts["findings"][s]) or "none"
        lines = [
            f"{counts['nodes']} nodes, {counts['gpus']} GPUs, {counts['nics']} NICs, "
            f"{counts['shapes']} distinct topologies in {counts['groups']} peer groups",
            f"findings: {found}",
        ]
        outliers = [node for node in nodes if node.differences]
        lines += [
            f"outlier {node.shown}: {node.differences[0]}"
            + (f" (and {len(node.differences) - 1} more)" if len(node.differences) > 1 else "")
            for node in outliers[:10]
        ]
        if len(outliers) > 10:
            lines.append(f"and {len(outliers) - 10} more outliers")
        for word in (UNREACHABLE, FAILED, ABSENT):
            hosts = [node.shown for node in nodes if node.status == word]
            if hosts:
                lines.append(f"{word}: {', '.join(hosts[:10])}" + (f" and {len(hosts) - 10} more" * (len(hosts) > 10)))
        lines.append(f"report: {self._path('index.html')}")
        return lines


def _view_of(text: str) -> View:
    facts = json.loads(text)
    return View(read_facts(facts if isinstance(facts, dict) else {}))


def _counts(nodes: list[Node], groups: list[Peers]) -> dict[str, t.Any]:
    severities = Counter(finding[0] for node in nodes for finding in node.findings)
    return {
        "nodes": len(nodes),
        "probed": sum(bool(node.digest) for node in nodes),
        "gpus": sum(node.gpus for node in nodes),
        "nics": sum(node.nics for node in nodes),
        "groups": len(groups),
        "shapes": len({node.shape for node in nodes if node.shape}),
        "outliers": sum(bool(node.differences) for node in nodes),
        "absent": sum(bool(node.status) for node in nodes),
        "findings": {severity: severities[severity] for severity in SEVERITIES},
    }


def _by_finding(nodes: list[Node]) -> list[dict[str, t.Any]]:
    """Return the findings of all nodes by severity and identifier, each with the nodes it hits."""
    groups: dict[tuple[str, str], dict[str, t.Any]] = {}
    for node in nodes:
        for severity, ident, summary, action in node.findings:
            group = groups.setdefault(
                (severity, ident),
                {"severity": severity, "id": ident, "summary": summary, "action": action, "nodes": {}},
            )
            group["nodes"].setdefault(node.host, [node, 0])[1] += 1
    return sorted(groups.values(), key=lambda g: (SEVERITIES.index(g["severity"]), -len(g["nodes"]), g["id"]))


def _sources(site: dict[str, t.Any]) -> dict[str, str]:
    """Where each stored node's inventory was read from, as far as the report says it."""
    nodes = site.get("nodes")
    found = {}
    for one in nodes if isinstance(nodes, list) else ():
        if isinstance(one, dict) and isinstance(one.get("inventory"), str) and one["inventory"]:
            found[str(one.get("name"))] = one["inventory"]
    return found


def _some_hosts(hosts: t.Sequence[str]) -> str:
    return ", ".join(clean(host) for host in hosts[:10]) + (f" and {len(hosts) - 10} more" * (len(hosts) > 10))
