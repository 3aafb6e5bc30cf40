# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What C(make test) and C(make test-all) run, one session a check: tools/checks.py tells which of them runs which.

C(make test ONLY=name) runs one of either; C(nox --list) names them.

A session that lacks an interpreter or a program is skipped, and the table at the end says why. Environments come from
tools/environment.py: one holds every tool, so that sessions start at once. Where everything runs, as many sessions as
there are processors run at a time, each as a process with a copy of the collection of its own, and print what they have
to say when they end; C(NOX_PARALLEL=1 make test) runs one after the other.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import typing as t
import urllib.request
from pathlib import Path

import nox

sys.path.insert(0, str(Path(__file__).parent / "tools"))
import cluster as kubernetes
import lab as virtual
from checks import QUICK, REST, begin, check
from downloads import download, other_collections
from environment import (
    CACHE,
    COLLECTION,
    OTHERS,
    REPOSITORY,
    WORK,
    Missing,
    alone,
    ensure,
    ensure_package,
    environment,
    lock_file,
    tracked,
    version,
)

nox.needs_version = ">=2026.10.20"
nox.options.default_venv_backend = "none"
nox.options.reuse_existing_virtualenvs = True
nox.options.allow_parallel = True
if not {"-s", "--session", "--sessions"} & set(sys.argv):
    nox.options.parallel = min(os.cpu_count() or 1, 4)

CONTROLLERS = ("3.13", "3.12", "3.11")  # newest first; the first one found runs every check, the others some
PURE = tuple(f"plugins/module_utils/{name}" for name in ("topology", "dra", "uplinks", "host"))  # typed strictly
SCENARIOS = ("default", "fabric", "cluster")  # below molecule/
SEPARATE = (
    "cluster",
    "commands",
    "driver",
    "host",
    "lab",
)  # folders of tests that have a session, not C(tests), of their own
TARGETS = ("3.9", "3.10", "3.11", "3.12", "3.13")
SLOW = bool(os.environ.get("LANEWISE_SLOW"))
DIST = WORK / "dist"
GET_PIP = "# in place of the real one, which cannot be reached; 'make clean' of lanewise.dra removes it"
PARALLEL = ("--numprocesses", str(min(os.cpu_count() or 1, 4)), "--dist", "loadfile")  # a file's tests share its nodes
FOUND = "LANEWISE_PYTHONS"  # names the interpreters once they were looked for
WORKER = "--parallel-worker" in sys.argv  # one session of many, in a process of its own


begin(WORKER)


@functools.lru_cache(None)
def pythons() -> dict[str, str]:
    """Real paths of the interpreters on this machine by version: those on PATH, then pyenv's.

    pyenv's shims are resolved, as ansible-test cannot work with them.
    """
    if FOUND in os.environ:
        return t.cast(dict[str, str], json.loads(os.environ[FOUND]))
    tell = "import sys; print('%d.%d' % sys.version_info[:2], getattr(sys, '_base_executable', sys.executable))"
    candidates = [sys.executable, *(f"python{name}" for name in TARGETS)]
    if shutil.which("pyenv"):
        names = subprocess.run(
            ["pyenv", "versions", "--bare"], capture_output=True, text=True, check=True
        ).stdout.split()
        root = subprocess.run(["pyenv", "root"], capture_output=True, text=True, check=True).stdout.strip()
        candidates += [f"{root}/versions/{name}/bin/python" for name in names if name[0].isdigit()]
    found: dict[str, str] = {}
    for candidate in candidates:
        if not shutil.which(candidate):
            continue
        answer = subprocess.run([candidate, "-c", tell], capture_output=True, text=True, check=False)
        if answer.returncode == 0:
            name, path = answer.stdout.split(maxsplit=1)
            found.setdefault(name, path.strip())
    os.environ[FOUND] = json.dumps(found)  # for the processes of single sessions
    return found


if nox.options.parallel and not WORKER:
    pythons()


def python(name: str) -> str:
    if name not in pythons():
        raise Missing(f"there is no Python {name} on this machine")
    return pythons()[name]


def primary() -> str:
    """The controller Python that runs every check."""
    return next((name for name in CONTROLLERS if name in pythons()), f"{sys.version_info[0]}.{sys.version_info[1]}")


@functools.lru_cache(None)
def scratch() -> Path:
    """Where tests make their files: in memory if there is room, as trees of machines are thousands of small files."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 4 * 2**30
    folder = Path(tempfile.mkdtemp(prefix="lanewise-dra-", dir=memory if roomy else None))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def room(session: nox.Session) -> Path:
    """Where a session keeps what it makes: of its own where others run meanwhile."""
    return WORK / "in" / re.sub(r"[^a-z0-9.]+", "-", session.name).strip("-") if session.parallel else WORK


def tree(session: nox.Session) -> Path:
    """The copy of the collection that a session looks at."""
    return room(session) / "stage" / COLLECTION


def run(
    session: nox.Session, venv: Path, *command: str, cwd: Path | None = None, silent: bool = False, **variables: str
) -> str:
    """Run a command of an environment in the staged collection, with every interpreter's folder on PATH.

    The output of a silent command is returned.
    """
    values = environment(venv, room(session) / "stage", OTHERS)
    # python3.9 and so on must be the real programs; 'python3' stays the environment's
    values["PATH"] += os.pathsep + os.pathsep.join(str(Path(path).parent) for path in pythons().values())
    first = str(venv / "bin")
    rest = [part for part in values["PATH"].split(os.pathsep) if part != first and "/shims" not in part]
    values["PATH"] = os.pathsep.join([first, *rest])
    recorded = REPOSITORY.parent / "shared" / "topologies"  # the copy is elsewhere, so that it would not find them
    if recorded.is_dir():
        values.setdefault("LANEWISE_TOPOLOGIES", str(recorded))
    values["TMPDIR"] = str(scratch())
    # the tools' own caches stay below .cache
    values.update(ANSIBLE_HOME=str(room(session) / "ansible"), PYTHONDONTWRITEBYTECODE="1", **variables)
    program = venv / "bin" / command[0]  # nox would look along its own PATH
    with session.chdir(cwd or tree(session)):
        command = (str(program) if program.exists() else command[0], *command[1:])
        return str(session.run(*command, env=values, include_outer_env=False, silent=silent))


@functools.lru_cache(None)
def stage(place: Path) -> None:
    """Copy what git tracks or would track to .../ansible_collections/lanewise/dra, where Ansible's tools want it.

    The copy is a git repository of its own: ansible-test asks git which files to look at, and would be told of none in
    a folder that this repository ignores.
    """
    wanted = {name for name in tracked(REPOSITORY) if (REPOSITORY / name).is_file()}
    place.mkdir(parents=True, exist_ok=True)
    if not (place / ".git").exists():
        subprocess.run(["git", "init", "--quiet", "."], cwd=place, check=True)
    for top in place.iterdir():
        if top.name in (".git", ".cache"):  # the tests' own: the copy's repository, example machines
            continue
        if top.is_file() and top.name not in wanted:
            top.unlink()
        for folder, _folders, files in os.walk(top, topdown=False):
            for name in files:
                if str((Path(folder) / name).relative_to(place)) not in wanted:
                    (Path(folder) / name).unlink()
            if not os.listdir(folder):
                os.rmdir(folder)
    for name in wanted:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(REPOSITORY / name, place / name)


@functools.lru_cache(None)
def ansible_test_pip(venv: Path) -> None:
    """Let ansible-test's own environments get pip where its download host cannot be reached.

    ansible-test looks for the bootstrap script in its cache first. Where the host answers nothing is done; elsewhere a
    script with the same effect goes there, which installs the pip that ansible-test wants with the pinned pip wheel.
    """
    source = next(venv.glob("lib/python3*/site-packages/ansible_test/_internal/python_requirements.py")).read_text()
    for number in sorted(set(re.findall(r"pip='([\d.]+)'", source))):
        script = Path.home() / f".ansible/test/cache/get_pip_{number.replace('.', '_')}.py"
        if script.exists() and GET_PIP not in script.read_text():
            continue
        url = f"https://ci-files.testing.ansible.com/ansible-test/get-pip-{number}.py"
        try:
            urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=10).close()
        except OSError:
            script.parent.mkdir(parents=True, exist_ok=True)
            text = (
                f"{GET_PIP}\nimport sys\nsys.path.insert(0, {str(download('pip'))!r})\n"
                "from pip._internal.cli.main import main\n"
                "extra = ('--no-setuptools', '--no-wheel')\n"
                "sys.exit(main(['install'] + [word for word in sys.argv[1:] if word not in extra]))\n"
            )
            if not script.exists() or script.read_text() != text:
                script.write_text(text)


def prepare(session: nox.Session, lock: str = "dev", name: str | None = None) -> Path:
    """The staged collection and its tools; the controller's environment is returned."""
    ensure_package("git", bool(shutil.which("git")))
    stage(tree(session))
    return ensure(lock, python(name or primary()))


def ensure_useful(session: nox.Session, package: str, *programs: str) -> None:
    """Install a package for the sake of one of its programs. The tests that need it skip themselves where it cannot be
    had, and say so; in CI that is an error."""
    try:
        ensure_package(package, any(shutil.which(program) for program in programs))
    except Missing as missing:
        if os.environ.get("CI"):
            session.error(str(missing))
        session.warn(str(missing))


def driver_package(session: nox.Session, venv: Path) -> str:
    """A PYTHONPATH on which the driver stands as its wheel installs it, after the collections."""
    return os.pathsep.join(str(path) for path in (room(session) / "stage", OTHERS, driver_site(venv, room(session))))


@functools.lru_cache(None)
def driver_site(venv: Path, place: Path) -> Path:
    """The folder with the driver as its wheel installs it, made below a session's room."""
    folder = place / "driver"
    shutil.rmtree(folder, ignore_errors=True)
    source = folder / "source"  # a build leaves its own files behind
    for name in ("driver", *(f"plugins/module_utils/{one}" for one in ("dra", "topology", "uplinks"))):
        shutil.copytree(REPOSITORY / name, source / name)
    shutil.copy(REPOSITORY / "pyproject.toml", source)
    pip = [str(venv / "bin/python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source)]
    subprocess.run(build, check=True)
    wheel = str(next(folder.glob("*.whl")))
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--target", str(folder / "site"), wheel], check=True)
    return folder / "site"


@nox.session(tags=[REST])
@check
def programs(session: nox.Session) -> None:
    """Build Kubernetes' programs, once: the longest step of a first run, so it begins before all else."""
    for minor in kubernetes.minors():
        kubernetes.programs(minor, *kubernetes.CONTROL_PLANE, *kubernetes.NODE)


@nox.session(tags=[QUICK])
@check
def lint(session: nox.Session) -> None:
    """Style and types: ruff, mypy, ansible-lint with yamllint, the changelog's form."""
    venv = prepare(session)
    other_collections()
    site = str(driver_site(venv, room(session)))
    # ansible-lint installs the collection there, and would look at an older one first
    shutil.rmtree(room(session) / "ansible" / "collections", ignore_errors=True)
    commands = (
        ("ruff", "check", "--cache-dir", str(WORK / "ruff"), "."),
        ("ruff", "format", "--check", "--cache-dir", str(WORK / "ruff"), "."),
        ("mypy", "--cache-dir", str(WORK / "mypy"), *PURE),
        ("mypy", "--cache-dir", str(WORK / "mypy-driver"), "-p", "lanewise_driver"),
        ("ansible-lint", "--profile", "production", "--offline"),
        ("antsibull-changelog", "lint"),
    )
    failed = []
    for command in commands:  # every one of them, so that one run shows all there is to mend
        try:
            run(session, venv, *command, MYPYPATH=site)
        except nox.command.CommandFailed:
            failed.append(command[0])
    if failed:
        session.error(f"found faults: {', '.join(failed)}")


@nox.session(tags=[REST])
@nox.parametrize("controller", CONTROLLERS, ids=CONTROLLERS)
@check
def sanity(session: nox.Session, controller: str) -> None:
    """ansible-test sanity, without an ignore file. The main controller looks at every target Python.

    Of the others, those with another ansible-core see something new.
    """
    main = controller == primary()
    locks = {lock_file("core", version(python(name))) for name in (controller, primary())}
    if not main and len(locks) == 1:
        raise Missing(f"the same ansible-core looks at everything with Python {primary()}")
    venv = prepare(session, "dev" if main else "core", controller)
    ansible_test_pip(venv)
    made = CACHE / f"sanity-{venv.name}.made"  # the environments that ansible-test makes the first time, some for all
    with contextlib.nullcontext() if made.exists() else alone(CACHE / "sanity"):
        run(session, venv, "ansible-test", "sanity", "--color", "no", *([] if main else ["--python", controller]))
    made.touch()


@nox.session(tags=[QUICK])
@check
def units(session: nox.Session) -> None:
    """Unit tests as a managed node with the newest Python runs them."""
    unit_tests(session, next(name for name in reversed(TARGETS) if name in pythons()))


@nox.session(tags=[REST])
@nox.parametrize("target", TARGETS, ids=TARGETS)
@check
def older_units(session: nox.Session, target: str) -> None:
    """Unit tests as managed nodes with the other Pythons run them.

    The oldest by ansible-test, which runs each test in a process of its own and takes twice as long.
    """
    if target == next(name for name in reversed(TARGETS) if name in pythons()):
        raise Missing("the session 'units' runs them on this Python")
    if target != TARGETS[0]:
        unit_tests(session, target)
        return
    venv, node = prepare(session), ensure("unit", python(target))
    options = ("--color", "no", "--target-python", f"{target}@{node / 'bin/python'}")
    run(session, venv, "ansible-test", "units", *options)


def unit_tests(session: nox.Session, target: str) -> None:
    """Run the unit tests on a Python that is given ansible.module_utils and no more of Ansible, as a node is."""
    venv, node = prepare(session), ensure("unit", python(target))
    given = room(session) / "node" / target
    shutil.rmtree(given, ignore_errors=True)
    (given / "ansible").mkdir(parents=True)
    (given / "ansible" / "__init__.py").touch()
    source = next(venv.glob("lib/python3*/site-packages/ansible/module_utils"))
    (given / "ansible" / "module_utils").symlink_to(source)
    paths = os.pathsep.join(map(str, (given, room(session) / "stage")))
    run(session, node, "python", "-m", "pytest", *PARALLEL, "-p", "no:cacheprovider", "tests/unit", PYTHONPATH=paths)


@nox.session(tags=[QUICK])
@check
def tests(session: nox.Session) -> None:
    """The other tests: example machines, oracles, the report in a browser, the site playbook over SSH."""
    other_tests(session, "not long")


@nox.session(tags=[REST])
@check
def long(session: nox.Session) -> None:
    """Those of the other tests that take long: large reports, card replacement, rollouts, oracles built from Go."""
    other_tests(session, "long")


def other_tests(session: nox.Session, which: str) -> None:
    """Run the tests of all folders that have no session of their own, by their markers."""
    venv = prepare(session)
    other_collections()
    browsers = ("chromium", "chromium-browser", "google-chrome")
    wanted = {"hwloc-nox": ("lstopo-no-graphics", "lstopo"), "chromium": browsers}
    if os.environ.get("CI"):  # not on a person's machine, where the package would start a server
        wanted["openssh-server"] = ("/usr/sbin/sshd",)
    for name, programs in wanted.items():
        ensure_useful(session, name, *programs)
    folders = {str(path.parent.relative_to(REPOSITORY)) for path in REPOSITORY.glob("tests/*/test_*.py")}
    folders -= {f"tests/{name}" for name in SEPARATE}
    run(session, venv, "python", "-m", "pytest", *PARALLEL, "-m", which, *sorted(folders))


@nox.session(tags=[QUICK])
@check
def commands(session: nox.Session) -> None:
    """C(make try), the tutorial and the commands of all pages, in a fresh checkout of a person without root or sudo."""
    venv = prepare(session)
    ensure_useful(session, "util-linux", "setpriv")
    run(session, venv, "python", "-m", "pytest", "tests/commands")


@nox.session(tags=[QUICK])
@check
def driver(session: nox.Session) -> None:
    """The driver as its wheel installs it, on network namespaces of the tests' own."""
    driver_tests(session, "not control_plane and not long")


@nox.session(tags=[REST])
@check
def claims(session: nox.Session) -> None:
    """The driver's claims, in network namespaces of the tests' own and with a real API server."""
    kubernetes.programs(kubernetes.minors()[0])
    driver_tests(session, "control_plane or long")


def driver_tests(session: nox.Session, which: str) -> None:
    """Run the tests of the driver that have a marker, or have it not."""
    venv = prepare(session)
    other_collections()
    ensure_useful(session, "dnsmasq-base", "dnsmasq", "/usr/sbin/dnsmasq")
    command = ("python", "-m", "pytest", *PARALLEL, "-m", which, "tests/driver")
    run(session, venv, *command, PYTHONPATH=driver_package(session, venv))


@nox.session(tags=[QUICK])
@check
def host(session: nox.Session) -> None:
    """What configures nodes, on the real kernel in namespaces of the tests' own, with the programs of distributions."""
    venv = prepare(session)
    other_collections()
    run(session, venv, "python", "-m", "pytest", "tests/host", PYTHONPATH=driver_package(session, venv))


@nox.session(tags=[REST])
@check
def cluster(session: nox.Session) -> None:
    """Real API servers and schedulers of each pinned Kubernetes, on loopback; docs/cluster.md tells what they cost."""
    venv = prepare(session)
    other_collections()
    for minor in kubernetes.minors():
        kubernetes.programs(minor)
    command = ("python", "-m", "pytest", *PARALLEL, "tests/cluster", "--ignore-glob=*/test_node*.py")
    run(session, venv, *command, PYTHONPATH=driver_package(session, venv))


@nox.session(tags=[REST])
@check
def node(session: nox.Session) -> None:
    """A real kubelet and containerd with pods, in namespaces of their own. Needs root; leaves nothing behind.

    All with the newest Kubernetes and a part with the oldest, or all with the one that C(K8S) names.
    """
    if os.geteuid() or sys.platform != "linux":
        raise Missing("needs root on Linux, for namespaces and containers: 'sudo make test ONLY=node'")
    namespaces = ["unshare", "--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--mount-proc", "true"]
    if not shutil.which("unshare") or subprocess.run(namespaces, capture_output=True, check=False).returncode:
        raise Missing("may not make namespaces here, as in a container without privileges")
    venv = prepare(session)
    other_collections()
    ensure_package("runc", bool(shutil.which("runc")))
    for name, program in {"dnsmasq-base": "dnsmasq", "iperf3": "iperf3"}.items():
        ensure_useful(session, name, program)
    asked = os.environ.get("K8S", "")
    newest, oldest = kubernetes.minors()[0], kubernetes.minors()[-1]
    files = [f"test_node{name}.py" for name in ("", "_driver", "_chaos", "_daemonset", "_alignment")]
    turns: list[tuple[str, ...]] = [(asked or newest, file) for file in files]
    if not asked:
        turns.append((oldest, "test_node_driver.py", "-m", "each_kubernetes"))
    for minor in {turn[0] for turn in turns}:
        kubernetes.programs(minor, *kubernetes.CONTROL_PLANE, *kubernetes.NODE)
    for minor, file, *chosen in turns:  # each is a machine of its own
        command = ("python", "tests/cluster/sandbox.py", "python", "-m", "pytest", f"tests/cluster/{file}", *chosen)
        run(session, venv, *command, PYTHONPATH=driver_package(session, venv), K8S=minor)


@nox.session(allow_parallel=not SLOW, tags=[REST])
@check
def lab(session: nox.Session) -> None:
    """Virtual nodes with sockets, switches, GPUs and SR-IOV NICs, probed over SSH. No root, nothing installed."""
    if not SLOW:
        raise Missing("emulates processors for minutes: 'LANEWISE_SLOW=1 make test ONLY=lab' or 'make test-all'")
    virtual.ensure()
    venv = prepare(session)
    other_collections()
    run(session, venv, "python", "-m", "pytest", "tests/lab", PYTHONPATH=driver_package(session, venv))


@nox.session(allow_parallel=not SLOW, tags=[REST])
@check
def install(session: nox.Session) -> None:
    """The role dra_driver on a machine with systemd, kubelet and containerd: install, upgrade, roll back, remove."""
    if not SLOW:
        raise Missing("takes ten minutes: 'LANEWISE_SLOW=1 make test ONLY=install' runs it, as root")
    if os.geteuid() or sys.platform != "linux":
        raise Missing("needs root on Linux, for namespaces and containers")
    venv = prepare(session)
    other_collections()
    ensure_package("runc", bool(shutil.which("runc")))
    kubernetes.programs(kubernetes.minors()[0], *kubernetes.CONTROL_PLANE, *kubernetes.NODE)
    given = {  # there is no network in the sandbox
        "dra_driver_wheelhouse": str(CACHE / "driver-wheelhouse"),
        "dra_driver_wheelhouse_pythons": [primary()],
        "dra_driver_cache": str(WORK / "driver-wheels"),
    }
    wheelhouse = ("ansible-playbook", "-i", "localhost,", "lanewise.dra.driver_wheelhouse", "-e", json.dumps(given))
    run(session, venv, *wheelhouse)
    for file in ("test_node_role.py", "test_node_kubelet.py"):  # each on a machine of its own
        command = ("python", "tests/cluster/sandbox.py", "python", "-m", "pytest", f"tests/cluster/{file}")
        run(session, venv, *command, PYTHONPATH=driver_package(session, venv))


@nox.session(tags=[REST])
@nox.parametrize("controller", CONTROLLERS, ids=CONTROLLERS)
@check
def site(session: nox.Session, controller: str) -> None:
    """The whole way of C(make try) on each controller, in a folder whose name has a space; roles' documentation."""
    place = room(session) / "a checkout" / COLLECTION
    stage(place)
    venv = ensure("core", python(controller))
    run(session, venv, python(controller), "tools/try.py", cwd=place)
    if not (place / ".cache/report/index.html").is_file():
        session.error("the report is not where 'make try' says")
    roles = [f"lanewise.dra.{path.name}" for path in sorted((REPOSITORY / "roles").iterdir())]
    command = [python(controller), "tools/environment.py", "core", "ansible-doc", "--type", "role", *roles]
    warned = subprocess.run(
        command, cwd=REPOSITORY, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, check=True
    )
    if "DEPRECATION" in warned.stderr:
        session.error(f"ansible-doc warns of the roles' argument specifications:\n{warned.stderr[:2000]}")


@nox.session(allow_parallel=not SLOW, tags=[REST])
@nox.parametrize("scenario", SCENARIOS, ids=SCENARIOS)
@check
def molecule(session: nox.Session, scenario: str) -> None:
    """Scenarios: the example site; on virtual nodes, the role fabric and the whole life of a cluster's site."""
    if scenario != "default":
        if not SLOW:
            raise Missing("emulates processors for minutes: 'LANEWISE_SLOW=1 make test ONLY=molecule' runs it")
        virtual.ensure()
    if scenario == "cluster":
        kubernetes.programs(kubernetes.minors()[0], *kubernetes.CONTROL_PLANE, *kubernetes.NODE)
    venv = prepare(session)
    other_collections()  # it asks Galaxy for those that the collection depends on, where they are not there
    run(session, venv, "molecule", "test", "--scenario-name", scenario, MOLECULE_GLOB="molecule/*/molecule.yml")


@nox.session(tags=[REST])
@check
def docs(session: nox.Session) -> None:
    """ansible-doc reads every plugin and role; antsibull-docs finds no fault; pages become a site without a warning.

    A link that leads nowhere is one, and a page that docs/docsite/index.md does not list.
    """
    venv = prepare(session)
    other_collections()  # the documentation of an option may come from one of them
    run(session, venv, "ansible-doc", "--json", "--metadata-dump", "lanewise.dra", silent=True)
    run(session, venv, "antsibull-docs", "lint-collection-docs", "--plugin-docs", "--skip-rstcheck", ".")
    source, site = WORK / "docs/source", WORK / "docs/site"
    for folder in (source, site):
        shutil.rmtree(folder, ignore_errors=True)
    # what pages link to
    shutil.copytree(tree(session), source, ignore=shutil.ignore_patterns(".git", ".cache"))
    (source / "reference").mkdir()
    layout = ["--use-current", "--squash-hierarchy", "--fail-on-error", "--dest-dir", str(source / "reference")]
    run(session, venv, "antsibull-docs", "collection", *layout, "lanewise.dra")
    for name in ("conf.py", "index.md"):
        shutil.copy(source / "docs/docsite" / name, source)
    run(session, venv, "sphinx-build", "--quiet", "--fail-on-warning", "-b", "html", str(source), str(site))
    session.log(f"docs site: {site / 'index.html'}")


@nox.session(tags=[REST])
@check
def package(session: nox.Session) -> None:
    """Build the artifact, install and run it, import it as Galaxy would, read its execution environment files."""
    venv = prepare(session)
    shutil.rmtree(DIST, ignore_errors=True)
    run(session, venv, "ansible-galaxy", "collection", "build", "--output-path", str(DIST))
    artifact = next(DIST.glob("lanewise-dra-*.tar.gz"))
    version_of_driver = re.search(r'(?m)^version = "(.+?)"', (REPOSITORY / "pyproject.toml").read_text())
    if not version_of_driver or artifact.name != f"lanewise-dra-{version_of_driver[1]}.tar.gz":
        session.error(f"{artifact.name} has a driver of another version: galaxy.yml and pyproject.toml differ")
    place = DIST / "installed"
    install = ("ansible-galaxy", "collection", "install", str(artifact), "--offline", "--force", "-p", str(place))
    run(session, venv, *install, cwd=DIST)
    run(session, venv, "ansible-builder", "introspect", str(place), cwd=DIST)
    playbook = ("ansible-playbook", "-i", "localhost,", "-c", "local", "lanewise.dra.site")
    run(session, venv, *playbook, cwd=DIST, ANSIBLE_COLLECTIONS_PATH=str(place), PWD=str(DIST))
    importer = ("python", "-m", "galaxy_importer.main", str(artifact))
    without = {"GALAXY_IMPORTER_RUN_ANSIBLE_LINT": "false"}  # that is for the session C(lint)
    report = run(session, venv, *importer, cwd=DIST, silent=True, **without)
    session.log(report)
    if re.search(r"^(WARNING|ERROR)|Traceback|violation", report, re.MULTILINE):  # the importer itself lets these pass
        session.error("galaxy-importer has found faults")


@nox.session(default=False)
def lock(session: nox.Session) -> None:
    """Write the locks anew from requirements/*.in. Needs Python 3.9 to 3.12."""
    flags = "--upgrade -q --allow-unsafe --generate-hashes --strip-extras --no-emit-index-url --no-emit-find-links"
    made_on = {"unit": "3.9", "lock": "3.9", "runner": "3.11", "core-py311": "3.11", "dev-py311": "3.11"}
    made_on.update({"setup-py311": "3.11", "old-core": "3.11"})
    made_on.update({"core-py312": "3.12", "dev-py312": "3.12", "setup-py312": "3.12", "driver": "3.10"})
    for name, number in made_on.items():
        venv = ensure("lock", python(number))
        command = ["pip-compile", *flags.split(), "--output-file", f"{name}.txt", f"{name}.in"]
        run(session, venv, *command, cwd=REPOSITORY / "requirements", CUSTOM_COMPILE_COMMAND="make lock")
    lines = []
    for pin in (REPOSITORY / "requirements/downloads.in").read_text().split():
        folder = Path(session.create_tmp()) / pin
        options = "--quiet --no-deps --only-binary=:all: --ignore-requires-python".split()
        subprocess.run([sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), pin], check=True)
        wheel = next(folder.glob("*.whl"))
        digest = subprocess.run(
            [sys.executable, "-m", "pip", "hash", str(wheel)], check=True, capture_output=True, text=True
        ).stdout.split("--hash=")[1]
        lines.append(f"{pin} --hash={digest.strip()}\n")
    (REPOSITORY / "requirements/downloads.txt").write_text("".join(lines))
