# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The life of a claim on this node: prepared, attached to its pod, detached, forgotten.

Records on disk are the truth, and each is written before what it tells is done. So the next call, or the next process,
knows how far the last one may have come, takes everything back to the node and starts over; nothing here trusts that
what was begun was finished.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import logging
import threading
import time
import typing as t
from concurrent import futures
from pathlib import Path

from ..api import events
from ..base import logs, trace
from ..base.calls import AttachRequest, ClaimRef, DeviceHealth, Pod, PreparedDevice
from ..base.errors import Busy, DriverError, KernelError, Refused, Unreachable
from ..base.lock import PATIENCE, Locks
from ..base.metrics import DETACH, Metrics
from ..base.objects import Object
from ..base.pace import Pace
from ..base.paths import Paths
from ..base.settings import Settings
from ..dhcp.lease import Lease
from ..dra.config.interface_config import DRIVER
from ..dra.kube.problems import Problem
from ..interface import interfaces, take_back
from ..interface.host_state import HostState
from ..kernel import netns, rdma
from ..publish.inventory import Device
from ..topology import publish
from . import claim_status, health
from .claim_files import ClaimFiles
from .claim_status import HealthProblem
from .next_pod import NextPod
from .plan import check_pod, consumer, lost_devices, plan, refusal
from .records import ATTACHED, ATTACHING, DETACHING, PREPARED, DeviceRecord, Record, Store, Unreadable, boot_id
from .unclean import Unclean

if t.TYPE_CHECKING:
    from ..dhcp import lease_renewer

log = logging.getLogger(__name__)

_RESERVE = "reserve"
_READS = 16
#: Seconds until a claim's status says that its devices are prepared: when many pods start at once, they are attached by
#: then, and one request tells of both.
PREPARED_SETTLE = 5.0


class Cluster(claim_status.Api, t.Protocol):
    """What is needed of cluster.Cluster."""

    node: str

    def claim(self, namespace: str, name: str) -> Object | None: ...

    def pod(self, namespace: str, name: str) -> Object | None: ...


class Inventory(t.Protocol):
    """What is needed of inventory.Inventory."""

    def device(self, name: str) -> Device | None: ...

    def withheld(self, name: str) -> str: ...

    def needed(self, names: t.Iterable[str]) -> dict[str, str]: ...

    def look_ahead(self) -> None: ...

    @property
    def publication(self) -> publish.Publication: ...

    @property
    def settings(self) -> Settings: ...


class Service:
    """Prepares, attaches and takes back the claims of this node (calls.Service).

    C(mounts) is the mount namespace that pins are made in, where the driver has one of its own (netns.pin). Any number
    of threads and processes may call at once. After a start, C(reconcile) comes before anything else.
    """

    def __init__(
        self,
        paths: Paths,
        cluster: Cluster,
        inventory: Inventory,
        status: claim_status.Writer,
        metrics: Metrics | None = None,
        *,
        mounts: str | None = None,
        boot: str | None = None,
        patience: float = PATIENCE,
        reporter: events.Reporter | None = None,
    ) -> None:
        self.paths = paths
        self.cluster = cluster
        self.inventory = inventory
        self.status = status
        self.metrics = metrics
        self.reporter = reporter
        self.store = Store(paths.state_dir)
        self.pending_status = Store(paths.pending_status_dir)
        self.files = ClaimFiles(paths, mounts, lambda: inventory.settings.rdma_management)
        self.unclean = Unclean(paths.unclean_dir, boot or boot_id())
        self.locks = Locks(paths.run_dir / "locks", patience)
        self.mounts = mounts
        self.boot = boot or boot_id()
        self.pace = Pace()
        #: Called with a reason when devices were taken back for good: they are published again as they are now.
        self.released: t.Callable[[str], None] = lambda reason: None
        #: The same of a device that is kept from everybody, which others are to know soon.
        self.spoiled: t.Callable[[str], None] = lambda reason: None
        # a renewed lease is written down where nobody works on its claim: waiting could wait for who waits for it
        self._quick = Locks(self.locks.folder, 0.0)
        #: By claim and device: what is wrong with those that pods have.
        self._ailing: dict[str, dict[str, HealthProblem]] = {}
        #: By claim: the interfaces of its devices, as they are called on the node.
        self._interfaces: dict[str, set[str]] = {}
        #: By claim: the UID of the pod that its devices are to go to.
        self._prepared: dict[str, str] = {}
        self._renewer: lease_renewer.LeaseRenewer | None = None
        self._renewer_lock = threading.Lock()
        self._next_pod = NextPod(self._hand_on)
        #: Reads pods while their claims are checked.
        self._reads = futures.ThreadPoolExecutor(_READS, thread_name_prefix="pod")

    def close(self) -> None:
        """End the threads of its own. Nothing is taken back: pods run on."""
        self._reads.shutdown(wait=False, cancel_futures=True)
        if self._renewer:
            self._renewer.close()

    # what kubelet and the hook ask

    def prepare(self, claim: ClaimRef) -> list[PreparedDevice]:
        """Check a claim, write its record and its CDI spec. Nothing moves yet."""
        _check(claim)
        with logs.about(claim=claim.uid, claim_name=str(claim), operation="prepare"), trace.operation("prepare"):
            try:
                with self._claim(claim.uid):
                    return self._prepare(claim)
            except DriverError as error:
                self._report(events.claim(claim), events.PREPARE, error)
                raise

    def unprepare(self, claim: ClaimRef) -> None:
        """Take everything back and forget the claim. Kubelet names claims whose object may be gone."""
        _check(claim)
        line = logs.about(claim=claim.uid, claim_name=str(claim), operation="unprepare")
        with line, trace.operation("unprepare"), self._claim(claim.uid):
            record = self._load(claim.uid)
            if record:
                claim = _reference(record)  # as it was prepared
            self._forget(claim.uid, record, pending_status=True)
            self._delete_status(claim)  # without a record too: a prepare that failed has told why
            if record:
                log.info("unprepared")

    def attach(self, request: AttachRequest) -> None:
        """Bring a claim's devices into the network namespace of a container that starts. Asks nobody but the node."""
        line = logs.about(claim=request.uid, container=request.container, operation="attach")
        with line, trace.operation("attach"):
            try:
                self._next_pod.check(request.uid, request.pod_uid)
                with self._claim(request.uid):
                    self._attach_once(request)
                    self.files.set_early(request.uid, False)
            except Busy:
                raise  # the hook tries again by itself, and tells in the end
            except DriverError as error:
                if request.pod_uid and request.pod_namespace and request.pod_name:
                    about = Pod(request.pod_namespace, request.pod_name, request.pod_uid)
                    self._report(events.pod(about), events.ATTACH, error)
                raise

    def attach_early(self, request: AttachRequest) -> None:
        """As M(attach), before a container starts: what fails is for its hook to tell."""
        with trace.operation("attach"), self._claim(request.uid):
            record = self._load(request.uid)
            if record and record.phase == PREPARED and record.pod and record.pod.uid == request.pod_uid:
                self.files.set_early(request.uid, True)  # before hooks can find it attached
                self._attach_once(request)

    def waiting(self, pod_uid: str = "") -> list[str]:
        """The claims of a pod that this process has prepared and not attached; of all pods without C(pod_uid)."""
        return [uid for uid, pod in list(self._prepared.items()) if not pod_uid or pod == pod_uid]

    def _attach_once(self, request: AttachRequest) -> None:
        record = self._load(request.uid)
        if record is None:
            raise Refused(f"claim {request.uid} is not prepared on this node")
        if not record.held:
            return
        if netns.is_host(request.netns):
            raise Refused("the container is in the node's network, where devices are anyway")
        self._check_pod(record, request)
        pin = self.paths.pin(record.uid)
        if record.phase == ATTACHED and netns.same(pin, request.netns):
            return  # for another container of the pod
        if record.phase != PREPARED:
            # the last attempt did not end, or the pod has a new sandbox
            self._drop_leases(record)
            with self._devices(record):
                self._detach(record)
        self._attach(record, request, pin)

    def health(self) -> list[DeviceHealth]:
        """Of all devices. What is known of those in pods is what C(look_after) last found."""
        records = self.store.all()[0]
        return health.devices(self.cluster.node, self.inventory.publication, records, self._ailing)

    def look_after(self) -> bool:
        """Look at the devices in pods, and tell of those that are not well, or are again; whether there were any."""
        changed = False
        for record in self.store.all()[0]:
            if record.phase != ATTACHED:
                continue
            with logs.about(claim=record.uid):
                try:
                    changed |= self._look_at(record)
                except Busy:
                    pass  # it may be about to leave its pod
                except Exception:
                    log.exception("the devices in its pod cannot be looked at")  # those of others can
                    if self.metrics:
                        self.metrics.error("health")
        return changed

    def _look_at(self, record: Record) -> bool:
        """Whether the health of a claim's devices has changed."""
        if self._changed_health(record) is None:
            return False
        with self._quick.hold(f"claim-{record.uid}"):
            again = self._load(record.uid)
            news = self._changed_health(again) if again and again.phase == ATTACHED else None
            if again is None or news is None:
                return False
            self._ailing[again.uid] = news
            self._tell(again)
            return True

    def retry_unclean(self) -> bool:
        """Try to have devices as they were that are not; whether any is now."""
        changed = False
        held = {device.device for record in self.store.all()[0] for device in record.held}
        for name, entry in self.unclean.all().items():
            if name not in held:
                with contextlib.suppress(Busy):
                    try:
                        with self._quick.hold(f"device-{entry.lock}"):
                            changed |= self.unclean.retry(entry)
                    except KernelError as error:
                        log.error("%s is still not as it was: %s", name, error.message)
        return changed

    def _changed_health(self, record: Record) -> dict[str, HealthProblem] | None:
        """What is wrong with a claim's devices in its pod; None where that is known."""
        known = self._ailing.get(record.uid, {})
        found = health.ailments(record, self.paths.pin(record.uid), known)
        return found if found != known else None

    def held(self) -> list[Device]:
        """The devices that claims have for themselves, as they were at allocation, for inventory.Inventory. Those of an
        earlier boot are on the node again, and may be others by now."""
        records, unreadable = self.store.all()
        for error in unreadable:
            log.error("%s", error.message)
        records = [record for record in records if record.boot == self.boot]
        return [Device.from_json(device.known) for record in records for device in record.held]

    def holds(self, interface: str) -> bool:
        """Whether an interface of this name is, or was on the node, that of a device that a claim has, as far as this
        process works on the claim. Asked for each event of an interface."""
        return any(interface in names for names in list(self._interfaces.values()))

    # after a start

    def reconcile(self) -> bool:
        """Settle everything: recover, and drop_gone. True where nothing is left to be done."""
        recovered = self.recover()
        return self.drop_gone() and recovered

    def recover(self) -> bool:
        """Finish or take back what the last process began, and clear away what belongs to no record.

        Asks the node alone. False where something could not be done now and is told in the log: call again.
        """
        settled = True
        for leftovers in (self.store, self.pending_status, self.locks):
            settled &= self._tried(leftovers.sweep)
        for uid in self.store.uids():
            with logs.about(claim=uid, operation="recover"):
                settled &= self._tried(self._recover, uid)
        known = set(self.store.uids())
        for uid in self.files.claims() - known:
            with logs.about(claim=uid, operation="recover"):
                settled &= self._tried(self._clear_trace, uid)
        for uid in self.pending_status.uids():
            with logs.about(claim=uid, operation="recover"):
                settled &= self._tried(self._clear_status, uid)
        return settled

    def drop_gone(self) -> bool:
        """Take back the devices of claims that are gone or have lost them, and whose pods have ended.

        Kubelet does this by unprepare, but for claims that it has forgotten. False as for recover; an API server that
        does not answer is asked once.
        """
        settled = True
        for uid in self.store.uids():
            with logs.about(claim=uid, operation="reconcile"):
                try:
                    settled &= self._tried(self._drop_if_gone, uid)
                except Unreachable as error:
                    log.warning("it is not known which claims are gone: %s", error.message)
                    return False
        return settled

    def _tried(self, function: t.Callable[..., None], *args: str) -> bool:
        try:
            function(*args)
        except Unreachable:
            raise
        except DriverError as error:
            log.error("%s", error.message)
            return False
        except Exception:
            log.exception("failed")
            return False
        return True

    def _recover(self, uid: str) -> None:
        with self._claim(uid):
            record = self._load(uid)
            if record is None:
                return
            if record.phase in (ATTACHING, DETACHING):
                with self._devices(record):
                    self._detach(record)
            self.files.write(record)
            if record.phase == ATTACHED:
                self.files.set_attached(uid, True)
            self._tell(record)
            self._keep_leases(record)

    def _drop_if_gone(self, uid: str) -> None:
        with self._claim(uid):
            record = self._load(uid)
            if record is None:
                return
            lost = lost_devices(self.cluster.claim(record.namespace, record.name), record)
            if lost and not self._in_use(record):
                log.warning("%s, and its pod's processes are gone: its devices go back to the node", lost)
                self._forget(uid, record)

    def _in_use(self, record: Record) -> bool:
        pin = self.paths.pin(record.uid)
        return record.phase == ATTACHED and netns.alive(pin) and bool(netns.processes(pin))

    def _clear_trace(self, uid: str) -> None:
        with self._claim(uid):
            if self.store.load(uid) is None:  # else another instance has just prepared it
                log.warning("files of a claim without a record are removed")
                self.files.remove(uid)

    def _clear_status(self, uid: str) -> None:
        """Of a claim that was taken back by a process that was killed before it could say so."""
        with self._claim(uid):
            record = self.pending_status.load(uid)
            if record and self.store.load(uid) is None:
                self._delete_status(_reference(record))
            elif record:
                self.pending_status.remove(uid)

    # steps; the claim's lock is held

    @contextlib.contextmanager
    def _claim(self, uid: str) -> t.Iterator[None]:
        with self.pace.working(), self.locks.hold(f"claim-{uid}"):
            yield

    def _devices(self, record: Record) -> t.ContextManager[None]:
        return self.locks.hold(*(f"device-{device.lock}" for device in record.held))

    def _load(self, uid: str) -> Record | None:
        """A claim's record, of this boot; None where there is none, or where it could not be read and lies aside."""
        try:
            record = self.store.load(uid)
        except Unreadable as error:
            if self.store.path(uid).exists():
                raise  # a newer driver's
            log.error("%s", error.message)
            return None
        if record and record.boot != self.boot:
            # the machine has started anew, and its devices are where the kernel put them
            self._at_home(record)
            self._refresh(record)
            record.boot = self.boot
            self._save(record, PREPARED)
        return record

    def _refresh(self, record: Record) -> None:
        """Have a record say what its devices are in this boot. One that is not there yet with all that it had, as its
        drivers are not loaded, stays what it was."""
        for device in record.devices:
            try:
                now = self.inventory.device(device.device)
            except DriverError as error:
                log.warning("%s is taken to be what it was: %s", device.device, error.message)
                continue
            had = Device.from_json(device.known)
            if now and (now.interface or not had.interface) and (now.rdma_devices or not had.rdma_devices):
                device.known = now.as_json()

    def _save(self, record: Record, phase: str) -> None:
        before = record.phase, record.since
        if record.phase != phase or not record.since:
            record.since = claim_status.now()
        record.phase = phase
        try:
            with trace.step(f"write the record, {phase}"):
                self.store.save(record)
        except BaseException:
            record.phase, record.since = before
            raise
        if phase == PREPARED and record.pod and record.held:
            self._prepared[record.uid] = record.pod.uid
        else:
            self._prepared.pop(record.uid, None)
        self._interfaces[record.uid] = {str(device.known.get("interface")) for device in record.held}

    @staticmethod
    def _at_home(record: Record) -> None:
        record.netns = None
        for device in record.devices:
            device.host = device.rdma = device.network = None
            device.leases = []

    def _prepare(self, reference: ClaimRef) -> list[PreparedDevice]:
        self.inventory.look_ahead()
        claim = self.cluster.claim(reference.namespace, reference.name)
        if claim is None:
            raise Refused(f"claim {reference} does not exist")
        check = self._check_of(consumer(claim, reference.uid))
        old = self._load(reference.uid)
        if old:
            check()  # before anything of the claim is taken back
        if old and not _same(old, self._plan(claim, reference.uid)):
            log.warning("the claim was allocated anew, or is for another pod now")
            self._forget(reference.uid, old)
            old = None
        if old:
            record = old
        else:
            # of two claims that ask for one device at the same time, one sees the record of the other
            with self.locks.hold(_RESERVE):
                with trace.step("plan"):
                    record = self._plan(claim, reference.uid)
                self._save(record, PREPARED)
            self.pending_status.remove(reference.uid)
        try:
            if record.phase == PREPARED:
                with self._devices(record):
                    self._check_devices(record)
                    self._name_rdma(record)
            with trace.step("write metadata and the CDI spec"):
                prepared = self.files.write(record)
            with trace.step("wait for the pod's object"):
                check()
        except BaseException as error:
            if record is not old:
                self._forget(reference.uid, record)
            if isinstance(error, DriverError):
                self._tell(record, error.message)
            raise
        self._tell(record)
        if record is not old:
            log.info("prepared %s", ", ".join(device.device for device in record.devices))
        return prepared

    def _check_of(self, owner: Pod | None) -> t.Callable[[], None]:
        """Begin to read the pod of a claim. What is returned waits for the answer and raises what check_pod raises."""
        if owner is None:
            return lambda: None
        context = contextvars.copy_context()  # what log lines are about
        reading = self._reads.submit(context.run, self.cluster.pod, owner.namespace, owner.name)
        return lambda: check_pod(reading.result(), owner, self.cluster.node)

    def _plan(self, claim: Object, uid: str) -> Record:
        results = claim["status"]["allocation"]["devices"]["results"]
        names = {str(result.get("device")) for result in results if result.get("driver") == DRIVER}
        devices = {name: self.inventory.device(name) for name in sorted(names)}
        records, unreadable = self.store.all()
        for error in unreadable:
            log.error("%s", error.message)
        return plan(
            claim,
            uid=uid,
            node=self.cluster.node,
            known={name: device for name, device in devices.items() if device},
            withheld={name: self.inventory.withheld(name) for name, device in devices.items() if not device},
            others=records,
            boot=self.boot,
        )

    def _check_devices(self, record: Record) -> None:
        """Whether the node can spare the devices, and they can do what is asked. Raises Refused and Busy."""
        problems: list[Problem] = []
        with trace.step("look whether the node needs them"):
            needed = self.inventory.needed([device.device for device in record.held])
        for name, reason in needed.items():
            raise Busy(f"{name} is not given to pods now: {reason}")
        unclean = self.unclean.all()
        for device in record.held:
            if device.device in unclean:
                raise Busy(f"{device.device} is given to nobody until it is as it was: {unclean[device.device].text}")
            if device.interface:
                identity = Device.from_json(device.known).identity
                where = f"configuration of request {device.request} ({device.device})"
                with trace.step("check the configuration", device.device):
                    problems += interfaces.check(identity, device.config, where)
        if problems:
            raise refusal(problems)

    def _name_rdma(self, record: Record) -> None:
        """Have RDMA devices under the names of now: where the kernel numbered them anew, another function has the old
        name. Raises Busy where there is none, as its driver is not loaded yet or a pod that ends still has it."""
        changed = False
        for device in record.held:
            known = Device.from_json(device.known)
            if not known.address or not known.rdma_devices:
                continue
            now = rdma.links(known.address)
            if not now:
                raise Busy(f"{device.device}: its RDMA device is not on the node now")
            if now != sorted(known.rdma_devices):
                attributes = device.known["device"].get("attributes", {})
                if "rdmaDevice" in attributes and len(now) == 1:
                    attributes["rdmaDevice"] = {"string": now[0]}
                device.known["rdma_devices"] = now
                changed = True
        if changed:
            self._save(record, PREPARED)

    def _forget(self, uid: str, record: Record | None, pending_status: bool = False) -> None:
        """Take back a claim's devices and remove all its files; the record goes last. `pending_status` keeps it until
        the claim's status in the cluster is cleared."""
        if record:
            self._drop_leases(record)  # without the devices' locks, as a renewal may wait for its server
            with self._devices(record):
                self._detach(record, last=True)
        with trace.step("remove metadata, CDI spec and pin"):
            self.files.remove(uid)
        if pending_status:
            self.store.hand_over(uid, self.pending_status)
        else:
            self.store.remove(uid)
        self._interfaces.pop(uid, None)
        self._prepared.pop(uid, None)
        if record and record.held:
            self.released("a pod's devices are back")

    def _tell(self, record: Record, failure: str = "") -> None:
        said = claim_status.devices(record, failure, self._ailing.get(record.uid))
        # prepared is the last word only where the pod's containers are long in coming
        settle = PREPARED_SETTLE if record.phase == PREPARED and record.held and not failure else None
        ailing = bool(failure or self._ailing.get(record.uid))
        self.status.put(_reference(record), said, settle=settle, urgent=ailing)

    def _delete_status(self, claim: ClaimRef) -> None:
        """Have nothing of us in the claim's status."""
        self.status.put(claim, [], functools.partial(self.pending_status.remove, claim.uid))

    def _report(self, regarding: Object, reason: str, error: DriverError) -> None:
        if self.reporter:
            self.reporter.tell(regarding, reason, f"node {self.cluster.node}: {error.message}", error.fix)

    def _check_pod(self, record: Record, request: AttachRequest) -> None:
        """Raises Refused where a record is for another pod than the container's, Busy while that is looked up."""
        if not request.pod_uid:
            raise Refused("the container runtime does not say which pod the container belongs to")
        if not _is_for(record, request.pod_uid):
            self._next_pod.ask(record.uid, request.pod_uid)
            raise Refused(f"claim {record.namespace}/{record.name} is not for the pod {request.pod_uid}")

    def _hand_on(self, uid: str, pod_uid: str) -> None:
        """Prepare a claim again for the pod that it is reserved for now. Raises Refused where that is another one."""
        with self._claim(uid):
            record = self._load(uid)
            if record is None or _is_for(record, pod_uid):
                return
            self._prepare(_reference(record))
            renewed = self._load(uid)
            if renewed is None or not _is_for(renewed, pod_uid):
                raise Refused(f"claim {record.namespace}/{record.name} is not for the pod {pod_uid}")

    # devices

    def _attach(self, record: Record, request: AttachRequest, pin: Path) -> None:
        start = time.monotonic()
        try:
            with self._devices(record):
                self._move_in(record, request, pin)
            # without their locks: a server that does not answer keeps nobody from the other functions of the card
            for device in record.held:
                if device.config.get("dhcp") and device.host is not None:
                    with trace.step("ask for leases", device.device):
                        self._note(device, interfaces.take_leases(t.cast("HostState", device.host), device.config, pin))
            asked = {str(one.network["interfaceName"]): one.network["ips"] for one in record.held if one.network}
            with trace.step("wait until addresses can be used"):
                notes = interfaces.settle(pin, asked)
            for note in notes:
                log.info("%s", note)
            with trace.step("write metadata"):
                self.files.write_metadata(record)
            self._save(record, ATTACHED)
            self.files.set_attached(record.uid, True)
        except BaseException as error:
            if isinstance(error, Busy) and record.phase == PREPARED:
                raise  # nothing was begun
            message = error.message if isinstance(error, DriverError) else "the driver failed"
            log.error("attach failed: %s", message)
            try:
                with self._devices(record):
                    self._detach(record)
            except DriverError as second:
                log.error("what attach did cannot be taken back now: %s", second.message)
            self._tell(record, message)
            raise
        self._tell(record)
        self._keep_leases(record)
        names = [device.device for device in record.held]
        log.info("attached %s in %.0f ms", ", ".join(names), (time.monotonic() - start) * 1000)

    def _move_in(self, record: Record, request: AttachRequest, pin: Path) -> None:
        """Bring the devices into the namespace. Their locks are held."""
        exclusive = any(device.known["rdma_devices"] for device in record.held) and rdma.mode() == "exclusive"
        for device in record.held:
            known = Device.from_json(device.known)
            if device.interface:
                with trace.step("read the interface's state", device.device):
                    device.host = t.cast("Object", interfaces.snapshot(known.identity))
            if known.rdma_devices:
                nodes = [dataclasses.asdict(node) for node in self.files.live_nodes(device)]
                moves = list(known.rdma_devices) if exclusive else []
                told = {link: rdma.known(link) for link in moves}
                device.rdma = {"nodes": nodes, "moves": moves, "known": told}
        record.netns = list(netns.identity(request.netns))
        self._save(record, ATTACHING)
        with trace.step("pin the namespace"):
            netns.pin(request.netns, pin, self.mounts)
        for device in record.held:
            with trace.step("move and configure", device.device):
                self._give(device, pin)

    def _give(self, device: DeviceRecord, pin: Path) -> None:
        moves = device.rdma["moves"] if device.rdma else []
        first = [link for link in moves if rdma.before_interface(link)]
        for link in first:
            rdma.move(link, pin)
        if device.interface and device.host is not None:
            identity = Device.from_json(device.known).identity
            self._note(device, interfaces.attach(identity, t.cast("HostState", device.host), device.config, pin))
        for link in moves:
            if link not in first:
                rdma.move(link, pin)

    @staticmethod
    def _note(device: DeviceRecord, attached: interfaces.Attached) -> None:
        device.network, device.leases = t.cast("Object", attached.network), t.cast("list[Object]", attached.leases)
        for note in attached.notes:
            log.info("%s", note, extra={"device": device.device})

    def _keep_leases(self, record: Record) -> None:
        if record.phase != ATTACHED:
            return
        for device in record.held:
            for lease in device.leases:
                key = _lease_key(record, device, lease)
                self._leases().start(key, self.paths.pin(record.uid), t.cast("Lease", lease), device.config)

    def _drop_leases(self, record: Record) -> None:
        for device in record.held:
            for lease in device.leases:
                self._leases().stop(_lease_key(record, device, lease))

    def _leases(self) -> lease_renewer.LeaseRenewer:
        from ..dhcp import lease_renewer  # few claims ask for it

        with self._renewer_lock:
            if self._renewer is None:
                self._renewer = lease_renewer.LeaseRenewer(self._lease_changed)
            return self._renewer

    def _lease_changed(self, key: str, lease: Lease) -> None:
        """Write down a renewed lease, and the address where it is another one. In a thread of the renewer, which tries
        again after Busy."""
        uid, name, family = key.split(" ")
        try:
            with self._quick.hold(f"claim-{uid}"):
                record = self._load(uid)
                if record is None or record.phase != ATTACHED:
                    return
                for device in record.held:
                    if device.device == name:
                        _renew(device, family, lease)
                self._save(record, ATTACHED)
                self.files.write_metadata(record)
                self._tell(record)
        except Busy:
            raise
        except DriverError as error:
            log.error("a renewed lease of %s is not written down: %s", name, error.message)

    def _detach(self, record: Record, last: bool = False) -> None:
        """Take all devices back to the node, wherever they are, from whatever state. Raises the first DriverError, when
        all was tried; the record then stays C(detaching).

        It works on a full disk too: an interface that is back on the node is found there by whoever reads an older
        record. C(last) is before the record is dropped: nothing is written then that goes with it.
        """
        if record.phase == PREPARED:
            return
        measured = self.metrics.operation(DETACH) if self.metrics else contextlib.nullcontext()
        with measured, trace.step("detach"):
            self._ailing.pop(record.uid, None)
            try:
                self._save(record, DETACHING)
            except DriverError as error:
                log.warning("it is taken back without a word on disk: %s", error.message)
                record.phase = DETACHING
            self.files.set_attached(record.uid, False)
            pin = self.paths.pin(record.uid)
            self._drop_leases(record)
            failures = []
            for device in reversed(record.held):
                try:
                    with trace.step("take back", device.device):
                        if kept := self._take(device, pin):
                            self._report(events.claim(_reference(record)), events.UNCLEAN, DriverError(kept))
                except DriverError as error:
                    log.error("%s cannot be taken back: %s", device.device, error.message)
                    failures.append(error)
            if failures:
                self._report(events.claim(_reference(record)), events.DETACH, failures[0])
                raise failures[0]
            with trace.step("unpin the namespace"):
                netns.unpin(pin, self.mounts)
            self._at_home(record)
            if last:
                record.phase = PREPARED
            else:
                self.files.write_metadata(record)
                self._save(record, PREPARED)

    def _take(self, device: DeviceRecord, pin: Path) -> str:
        """Take one device back; why it is kept from everybody now, or nothing."""
        for link in device.rdma["moves"] if device.rdma else ():
            try:
                rdma.move(link, pin, back=True)
            except KernelError as error:
                if rdma.place(link, pin) != "missing":
                    raise
                if rdma.fetch(link, (device.rdma or {}).get("known", {}).get(link, {})):
                    continue
                # its hardware is gone, or it is where nobody sees it; prepare gives no device out without it
                log.warning("%s is left: %s", link, error.message, extra={"device": device.device})
        if device.host is not None:
            identity = Device.from_json(device.known).identity
            inside = pin if netns.alive(pin) else None
            policy = self.inventory.settings.reset
            outcome = take_back.take_back(identity, t.cast("HostState", device.host), inside, device.config, policy)
            for lost in outcome.notes:
                log.warning("%s", lost, extra={"device": device.device})
            kept = self.unclean.settle(device.device, device.known, device.host, outcome)
            if kept:
                says = f"{device.device} is given to nobody until it is as it was: {kept}"
                self.spoiled(f"{device.device} is not as it was")
                log.error("%s", says, extra={"device": device.device})
                return says
        return ""


def _lease_key(record: Record, device: DeviceRecord, lease: Object) -> str:
    return f"{record.uid} {device.device} {lease['family']}"


def _renew(device: DeviceRecord, family: str, lease: Lease) -> None:
    """Put a lease in the place of the one of its family, and its address in the place of that one's. A lost lease has
    no address."""
    had = {old["address"] for old in device.leases if old["family"] == family}
    has = [] if lease.get("lost") else [lease["address"]]
    device.leases = [*(old for old in device.leases if old["family"] != family), t.cast("Object", lease)]
    if device.network:
        ips = device.network["ips"]
        if set(has) <= set(ips) and not (had - set(has)) & set(ips):
            return  # the same address, where it was
        device.network["ips"] = [*(ip for ip in ips if ip not in had and ip not in has), *has]


def _is_for(record: Record, pod_uid: str) -> bool:
    return record.pod is not None and record.pod.uid == pod_uid


def _check(claim: ClaimRef) -> None:
    if problem := claim.problem():
        raise Refused(problem)


def _reference(record: Record) -> ClaimRef:
    return ClaimRef(record.namespace, record.name, record.uid)


def _same(old: Record, new: Record) -> bool:
    """Whether a claim is still allocated as it was prepared, to the same pod."""

    def said(record: Record) -> t.Any:
        devices = [(one.pool, one.device, one.request, one.admin, one.share_id, one.config) for one in record.devices]
        return record.pod, devices, record.namespace, record.name

    return bool(said(old) == said(new))
