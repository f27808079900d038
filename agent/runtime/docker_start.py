"""Starts one attempt in a container, in a thread of its own (AGENT-03, -07, -09, -18, -19).

Owns the way from a spec to a running container: image, network, container, start; and the removal of
what a failed or abandoned start leaves behind. Takes over a container of the same attempt that is
there already. Never starts an ended attempt again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from agent.config import Settings
from agent.contract.codes import Code, reason
from agent.contract.messages import TaskSpec
from agent.contract.states import Phase
from agent.engines.base import EngineOptionError
from agent.engines.catalog import get_engine
from agent.gpu.container_cards import CardsUnplaceable, cards_for_container
from agent.gpu.host import interface_of
from agent.models.mounts import HostMount, mount_model, mount_volume
from agent.models.paths import PathRefused
from agent.runtime import docker_creation, docker_pins
from agent.runtime.base import Instance, PortBusy, StartRefused
from agent.runtime.bound_ports import ANYWHERE, require_free
from agent.runtime.docker_client import Docker, DockerRefused, NoAnswer, told
from agent.runtime.docker_end import Ending
from agent.runtime.docker_images import Images
from agent.runtime.docker_labels import AGENT, ATTEMPT, SOURCES, TASK, TASK_NAME, build_labels
from agent.runtime.docker_pins import Pins
from agent.runtime.docker_words import Trouble, reason_for

log = logging.getLogger("agent.runtime")
AGAIN_S = 0.5
NO_WRITABLE = (
    "{path} is to be written to, and this node gives no writable volumes: its agent may not mount, and so "
    "could not keep other tasks' paths from being changed while they start. Ask for it with :ro, or for "
    "another node"
)
TAKE_OVER = ("running", "paused", "restarting", "exited", "dead")


class StartJob:
    """One try. `phase` tells how far it is; `outcome` is there once `done` is set."""

    def __init__(
        self,
        spec: TaskSpec,
        *,
        docker: Docker,
        images: Images,
        ending: Ending,
        settings: Settings,
        agent: str,
        node: str,
        card_indexes: dict[str, int],
        host_memory_mb: int,
        on_running: Callable[[str], None],
        pins: Path,
    ) -> None:
        self.spec = spec
        self.phase = Phase.NONE
        self.done = threading.Event()
        self.outcome: Instance | StartRefused | PortBusy | None = None
        self.container = ""
        self._docker = docker
        self._images = images
        self._ending = ending
        self._settings = settings
        self._labels = build_labels(spec, agent=agent, node=node)
        self._card_indexes = card_indexes
        self._host_memory_mb = host_memory_mb
        self._on_running = on_running
        self._pins_folder = pins
        self._pins = Pins(pins)
        self._pull_until: float | None = None  # one deadline for all tries
        self._abandoned = threading.Event()
        self._engine = get_engine(spec.engine)
        threading.Thread(target=self._run, name=f"start {spec.task_id}", daemon=True).start()

    def abandon(self) -> None:
        """Stop at the next step and leave nothing behind; `done` tells when that is so."""
        self._abandoned.set()

    def _run(self) -> None:
        try:
            while not self._abandoned.is_set():
                try:
                    self.outcome = self._start()
                    break
                except NoAnswer as error:
                    log.warning("%s: not started yet (%s); trying again", self.spec.task_id, error)
                    self._abandoned.wait(AGAIN_S)
        except (StartRefused, PortBusy) as error:
            self.outcome = error
        except DockerRefused as error:
            self.outcome = self._refusal(error)
        except Exception:
            log.exception("%s: the start failed", self.spec.task_id)
            self.outcome = StartRefused(reason(Code.INTERNAL))
        finally:
            if self._abandoned.is_set() or not isinstance(self.outcome, Instance):
                self._ending.clear_start(self.container, self.spec.task_id)
            self._pins.release()
            self.done.set()
            self._docker.close()

    def _refusal(self, error: DockerRefused) -> StartRefused | PortBusy:
        words = msgspec.structs.replace(error.words, text=self._pins.named(error.words.text))
        log.error("%s: Docker refuses the start: %s", self.spec.task_id, words.text)
        if words.trouble is Trouble.PORT_BUSY:
            return PortBusy(int(words.subject))
        image = docker_creation.image_of(self.spec, self._engine)
        return StartRefused(
            reason_for(words, image=image, model_path=self.spec.model_path, vendor=self.spec.gpu_vendor)
        )

    def _start(self) -> Instance | None:
        """Raises StartRefused, PortBusy, NoAnswer or DockerRefused; None when it was abandoned."""
        if not TASK_NAME.match(self.spec.task_id):
            raise StartRefused(reason(Code.START_FAILED, why=f"{self.spec.task_id!r} names no task"))
        if self._ending.is_pending(self.spec.task_id):
            raise NoAnswer("what was there before is still being removed")
        if self._take_over():
            return self._instance()
        creation = self._creation()
        self.phase = Phase.CREATING
        if self._images.must_pull(creation.image, self.spec.pull_credentials):
            self.phase = Phase.PULLING
        if self._pull_until is None:
            self._pull_until = time.monotonic() + self._settings.pull_deadline_s
        image = self._images.require(
            creation.image,
            self.spec.pull_credentials,
            until=self._pull_until,
            given_up=self._abandoned.is_set,
        )
        if self._abandoned.is_set():
            return None
        self.phase = Phase.CREATING
        if self.spec.stage is None:
            self._make_network()
        else:
            self._require_ports()
        # Looked at again and held: the pull took its time, and a container of the tenant's may have put a
        # link where a checked path was.
        self._create(msgspec.structs.replace(self._creation(hold=True), image=image))
        if self._abandoned.is_set():
            return None
        with told():
            self._docker.api.start(self.container)
        self._on_running(self.container)
        log.info("started %s as container %s", self.spec.task_id, self.container[:12])
        return self._instance()

    def _instance(self) -> Instance:
        ports = [port.host_port for port in self.spec.ports]
        return Instance(self.spec.task_id, self.spec.attempt, self.container, ports)

    def _take_over(self) -> bool:
        """Look at who bears this task's name already; True when it is this very attempt.

        A left-over of ours is removed, whatever it is; a stranger's is refused. Raises.
        """
        try:
            with told():
                there = self._docker.api.inspect_container(self.spec.task_id)
        except DockerRefused as error:
            if error.words.trouble is Trouble.GONE:
                return False
            raise
        labels = there["Config"].get("Labels") or {}
        if labels.get(AGENT) != self._labels[AGENT] or labels.get(TASK) != self.spec.task_id:
            why = f"another container bears the name {self.spec.task_id} and is not this agent's"
            raise StartRefused(reason(Code.START_FAILED, why=why))
        same = labels.get(ATTEMPT) == self._labels[ATTEMPT]
        if same and there["State"]["Status"] in TAKE_OVER and there["State"]["StartedAt"][:4] != "0001":
            self.container = str(there["Id"])
            self._on_running(self.container)
            log.info("took %s over as container %s", self.spec.task_id, self.container[:12])
            return True
        log.warning(
            "%s: a left-over container of attempt %s is removed", self.spec.task_id, labels.get(ATTEMPT)
        )
        self._ending.remove_now(str(there["Id"]), self.spec.task_id)
        return False

    def _mounts(self, *, hold: bool) -> tuple[list[HostMount], str]:
        """Mounts, and the model's path inside; `hold`: such as nobody can change any more. Raises
        PathRefused or StartRefused."""
        spec, rules, never = self.spec, self._settings.path_rules, self._settings.kept_paths
        mounts: list[tuple[HostMount, str]] = []
        inside = ""
        if spec.model_path:
            gguf = self._engine is not None and self._engine.name == "llamacpp"
            model = mount_model(spec.model_path, rules, gguf=gguf, never=never)
            mounts, inside = [(mount, spec.model_path) for mount in model.mounts], model.inside
        mounts += [(mount_volume(v, rules, never=never), v.split(":")[0]) for v in spec.volumes]
        sources = {mount.target: mount.source for mount, _ in mounts}
        self._labels[SOURCES] = msgspec.json.encode(sources).decode()
        if not hold or not mounts:
            return [mount for mount, _ in mounts], inside
        self._pins.release()  # those of a try before this one
        if docker_pins.can_pin(self._pins_folder, self._settings.docker_host):
            return [self._pins.hold(mount, given) for mount, given in mounts], inside
        for mount, given in mounts:
            if not mount.read_only:
                raise StartRefused(reason(Code.START_FAILED, why=NO_WRITABLE.format(path=given)))
        return [mount for mount, _ in mounts], inside

    def _creation(self, *, hold: bool = False) -> docker_creation.Creation:
        """Raises StartRefused."""
        spec, engine = self.spec, self._engine
        if not docker_creation.image_of(spec, engine):
            why = f"no image is known for {spec.gpu_vendor or 'cpu'}"
            raise StartRefused(reason(Code.ENGINE_UNAVAILABLE, engine=spec.engine, why=why))
        try:
            mounts, inside = self._mounts(hold=hold)
            cards = cards_for_container(spec.gpu_vendor, spec.gpu_uuids, self._card_indexes)
            command = docker_creation.build_command(
                spec,
                engine,
                model=inside,
                threads=self._settings.engine_threads,
                engine_host=self._settings.engine_host,
            )
        except PathRefused as error:
            raise StartRefused(error.reason) from error
        except CardsUnplaceable as error:
            raise StartRefused(
                reason(Code.CARDS_UNREACHABLE, vendor=spec.gpu_vendor, why=str(error))
            ) from error
        except EngineOptionError as error:
            raise StartRefused(
                reason(Code.START_FAILED, why=f"{error.name} = {error.value}: {error.rule}")
            ) from error
        return docker_creation.build_creation(
            spec,
            engine,
            self._settings,
            command=command,
            mounts=mounts,
            cards=cards,
            labels=self._labels,
            host_memory_mb=self._host_memory_mb,
            interface=interface_of(spec.stage.host) if spec.stage else "",
        )

    def _require_ports(self) -> None:
        """Those that a stage binds on the host itself. Raises PortBusy or StartRefused."""
        for mapping in self.spec.ports:
            require_free(self._settings.engine_host, mapping.host_port)
        if self.spec.stage is not None and self.spec.stage.rank == 0:
            require_free(ANYWHERE, self.spec.stage.master_port)

    def _make_network(self) -> None:
        """The task's own network, anew: Docker lets names of networks repeat, so old ones go first."""
        self._ending.remove_networks(self.spec.task_id)
        with told():
            self._docker.api.create_network(
                self.spec.task_id,
                driver="bridge",
                check_duplicate=True,
                # published ports need a way in; without masquerading there is none out
                internal=not self.spec.ports and not self._settings.network_egress,
                options={
                    "com.docker.network.bridge.enable_ip_masquerade": str(
                        self._settings.network_egress
                    ).lower()
                },
                labels={AGENT: self._labels[AGENT], TASK: self.spec.task_id},
            )

    def _create(self, made: docker_creation.Creation) -> None:
        try:
            self.container = self._create_told(made)
        except DockerRefused as error:
            if error.words.trouble is Trouble.NAME_TAKEN:  # since it was looked for: look again
                raise NoAnswer("its name was taken meanwhile") from error
            raise

    def _create_told(self, made: docker_creation.Creation) -> str:
        api = self._docker.api
        with told():
            config = api.create_host_config(
                **docker_creation.host_config(made, pass_cards=self._settings.pass_cards),
                mounts=docker_creation.bind_mounts(made),
            )
            created = api.create_container(
                made.image,
                name=made.name,
                command=made.command,
                entrypoint=made.entrypoint,
                environment=made.env,
                labels=made.labels,
                ports=[inside for inside, _, _ in made.ports],
                user=made.user or None,
                host_config=config,
            )
        return str(created["Id"])
