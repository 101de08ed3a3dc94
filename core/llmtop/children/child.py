"""The life of one child, from the spawn to the last news of it."""

from __future__ import annotations

import asyncio
import secrets
import signal
import subprocess
from collections.abc import Callable, Coroutine

from llmtop.children import autopsy, news, protocol
from llmtop.children.binary import ServerHelp, server_help
from llmtop.children.classify import TELLING, Verdict, exit_failure, failure, line_failure
from llmtop.children.command import Launch, build_launch, masked, with_descriptor_limit
from llmtop.children.ladder import STUCK_AFTER_S, Hands, Ladder
from llmtop.children.noted import Noted
from llmtop.children.output import Listener, Output
from llmtop.children.probe import Probe
from llmtop.children.process import ChildProcess, group_exists, group_member, process_state, start_process
from llmtop.children.ring import Ring
from llmtop.children.sizes import bytes_of_files
from llmtop.children.text import safe_text
from llmtop.children.world import World
from llmtop.config.spec import ModelSpec
from llmtop.errors import StartError
from llmtop.snapshot import Failure

_GATHER_S, _GATHER_VAGUE_S = 0.02, 0.25  # after a line that dooms it: the next lines say why
_SETTLE_S = 1.0  # until a wrapper has surely run what it wraps
_SIZES_AFTER_S = 0.05  # the log's thread is behind the ready line
_DRAIN_S, _GROUP_POLL_S = 0.25, 0.005
_SOONEST_S = 0.001  # uvloop gives what is due at once no time, and no ``when``


class Child:
    """One instance of a model. ``run`` is its whole life; the other methods ask it for something and return at once."""

    def __init__(self, instance: int, spec: ModelSpec, cache_ram_mib: int | None, world: World) -> None:
        self.instance = instance
        self.spec = spec
        self.ring = Ring()
        self._cache_ram_mib = cache_ram_mib
        self._world = world
        self._loop = asyncio.get_running_loop()
        self._api_key = "" if spec.cmd else secrets.token_urlsafe(24)
        self._port = 0
        self._launch: Launch | None = None
        self._process: ChildProcess | None = None
        self._output: Output | None = None
        self._probe: Probe | None = None
        self._noted: Noted | None = None
        self._gone = asyncio.Event()
        self._told_exit = False
        self._spoke = False
        self._ready = False
        self._asleep = False
        self._asked = False
        self._ladder: Ladder | None = None
        self._wanted: Callable[[], None] | None = None
        self._doom: Failure | None = None
        self._doomed = False
        self._condemning: asyncio.TimerHandle | None = None
        self._last_sign = self._loop.time()
        self._timers: list[asyncio.TimerHandle] = []
        self._tasks: set[asyncio.Task[None]] = set()

    # ---- what it is asked for

    def stop(self, footprint_bytes: int | None) -> None:
        """Ask it to leave, once; a second call does nothing."""
        if self._asked or self._gone.is_set():
            return
        self._asked = True
        if self._process is None:
            self._wanted = lambda: self._leave(footprint_bytes)
        else:
            self._leave(footprint_bytes)

    def kill(self) -> None:
        """SIGKILL to its group now."""
        if self._gone.is_set():
            return
        self._asked = True
        if self._process is None:
            self._wanted = self._kill
        else:
            self._kill()

    def _leave(self, footprint_bytes: int | None) -> None:
        assert self._ladder is not None
        self._ladder.leave(self._world.settings, ready=self._ready, footprint_bytes=footprint_bytes)

    def _kill(self) -> None:
        assert self._ladder is not None
        self._ladder.kill()

    @property
    def stuck(self) -> bool:
        """It, or a member of its group, survived SIGKILL."""
        return self._ladder is not None and self._ladder.stuck

    def verify(self) -> None:
        """Find out whether it can still answer."""
        if self._ready and not self._asked:
            self._background(self._verify())

    # ---- its life

    async def run(self) -> None:
        """Start it, follow it, and send ``Exited`` as the last news."""
        try:
            self._port = self._world.ports.pick()
            front_port = self._world.front_port()
            popen = await self._loop.run_in_executor(self._world.starters, self._start, front_port)
        except (OSError, ValueError, StartError, subprocess.SubprocessError) as e:
            self._never_ran(e)
            return
        process = self._process = ChildProcess(popen, self._gone.set)
        try:
            try:
                self._begin(popen, process)
            except OSError as e:
                self._doom = failure("crash", f"could not be watched: {e.strerror}")
                process.send(signal.SIGKILL, group=True)
            await self._gone.wait()
            await self._end(process)
        finally:
            process.close()
            self._close()

    def _start(self, front_port: int) -> subprocess.Popen[bytes]:
        """Runs in a thread: reading ``--help`` and starting a process both take milliseconds."""
        world, spec = self._world, self.spec
        self._launch = build_launch(
            spec,
            world.settings,
            program=world.llama_server,
            known=ServerHelp() if spec.cmd else server_help(world.llama_server),
            port=self._port,
            api_key=self._api_key,
            front_port=front_port,
            cache_ram_mib=self._cache_ram_mib,
        )
        return start_process(with_descriptor_limit(self._launch.argv, world.nofile), self._launch.env)

    def _never_ran(self, error: Exception) -> None:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        missing = isinstance(error, FileNotFoundError | PermissionError | StartError)
        kind = "not_found" if missing else "bad_argument" if isinstance(error, ValueError) else "crash"
        what = self.spec.cmd.split(maxsplit=1)[0] if self.spec.cmd else self._world.llama_server  # no secrets
        text = why if isinstance(error, StartError) else f"could not be started: {why}: {what}"
        self._gone.set()
        self._tell(news.Exited(self.instance, None, None, failure(kind, text), self._asked, sigkilled=False))

    def _begin(self, popen: subprocess.Popen[bytes], process: ChildProcess) -> None:
        assert self._launch is not None
        assert popen.stdout is not None
        assert popen.stderr is not None
        hands = Hands(self._tell, self._later, self._background, self._speaks)
        self._ladder = Ladder(
            self.instance, self.spec, port=self._port, env=self._launch.env, process=process, hands=hands
        )
        listener = Listener(self._control, self._wrong, self._oom, self._lines, self._sign)
        self._output = Output(
            self.spec.id,
            stdout=popen.stdout,
            stderr=popen.stderr,
            numbers=self._world.numbers,
            tail=self._world.tail,
            file=lambda text: self._world.logs.write(self.spec.id, text),
            listener=listener,
            file_bytes=bytes_of_files(self.spec.files),
        )
        self.ring = self._output.ring
        self._probe = Probe(
            self._world.client(),
            port=self._port,
            api_key=self._api_key,
            pgid=process.pid,
            health=self.spec.health if self.spec.cmd else "/health",
        )
        self._last_sign = self._loop.time()
        self._noted = Noted(process.pid, self._port, self.spec, self._world)
        self._tell(news.Started(self.instance, process.pid, self._port, masked(self._launch.argv), self._api_key))
        self._later(_SETTLE_S, self._note_executable)
        if self._wanted is not None:
            self._wanted()
        else:
            self._background(self._await_ready())
            self._watch_load()

    async def _end(self, process: ChildProcess) -> None:
        for timer in self._timers:
            timer.cancel()
        if self._output is not None:
            await self._output.finish(_DRAIN_S)
        await self._group_gone(process.pid)
        self._world.ports.touch(self._port)
        code, signum = process.status
        sigkilled = self._ladder is not None and self._ladder.sigkilled
        why = await self._why(code, signum)
        self._tell(news.Exited(self.instance, code, signum, why, self._asked, sigkilled))
        if self._noted is not None:  # after the news: somebody waits for the slot, nobody for the files
            self._noted.forget()

    async def _why(self, code: int | None, signum: int | None) -> Failure | None:
        if self._doom is not None and not self._ready:
            return self._doom
        if self._asked:
            return None
        why = exit_failure(self.ring.texts(), code=code, signal=signum, ready=self._ready)
        return why if self._ready else await autopsy.cause_of(why, self.spec.files, self._port)

    async def _group_gone(self, pgid: int) -> None:
        begin = self._loop.time()
        wait_s = _GROUP_POLL_S
        while group_exists(pgid) and (member := await asyncio.to_thread(group_member, pgid)) is not None:
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, 0.25)
            if self._ladder is not None and self._loop.time() - begin > STUCK_AFTER_S:
                self._ladder.tell_stuck(process_state(member))

    def _close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        for task in self._tasks:
            task.cancel()
        if self._output is not None:
            self._output.close()

    # ---- ready, asleep, sick

    def _control(self, line: bytes) -> bool:
        state = protocol.parse(line)
        if state is None:
            return False
        self._spoke = True
        if state.state == "ready":
            self._on_ready()
        elif state.state == "sleeping":
            self._on_sleep(asleep=True)
        elif not self._ready and not self._asked:
            payload = state.payload or protocol.Payload()
            self._tell(news.Loading(self.instance, safe_text(payload.current or state.state, 40), payload.fraction))
        return True

    def _on_ready(self) -> None:
        self._read_up()
        if self._ready:
            self._on_sleep(asleep=False)
        elif not self._asked and not self._doomed and not self._gone.is_set():
            self._ready = True
            self._tell(news.Ready(self.instance))
            self._note_executable()
            self._later(_SIZES_AFTER_S, self._tell_sizes)
            if not self.spec.cmd:
                self._background(self._after_ready())

    def _on_sleep(self, *, asleep: bool) -> None:
        if self._ready and asleep != self._asleep and not self._asked:
            self._asleep = asleep
            self._tell(news.Slept(self.instance) if asleep else news.Woke(self.instance))
            if not asleep:
                self._later(_SIZES_AFTER_S, self._tell_sizes)

    async def _await_ready(self) -> None:
        """Poll a child that does not speak the protocol; one that speaks it ends this."""
        assert self._probe is not None
        begin = self._loop.time()
        while not (self._ready or self._speaks() or self._asked):
            age = self._loop.time() - begin
            await asyncio.sleep(0.025 if age < 3 else 0.1 if age < 30 else 0.25)
            if await self._probe.healthy() and not self._speaks() and await self._probe.ours() and not self._speaks():
                self._on_ready()
                return

    def _speaks(self) -> bool:
        """It speaks the protocol, as far as it has said by now."""
        if not self._spoke and self._output is not None:
            self._output.pull_stdout()
        return self._spoke

    async def _after_ready(self) -> None:
        assert self._probe is not None
        props = await self._probe.props()
        slots = props.get("total_slots") if props else None
        if isinstance(slots, int) and not self._asked:
            self._tell(news.Slots(self.instance, slots))
        while self._launch is not None and self._launch.sleeps and not self._spoke and not self._asked:
            await asyncio.sleep(1)
            props = await self._probe.props()
            if props is not None and isinstance(props.get("is_sleeping"), bool):
                self._on_sleep(asleep=props["is_sleeping"])

    async def _verify(self) -> None:
        assert self._probe is not None
        wrong = await self._probe.sick()
        self._read_up()
        if wrong and not self._doomed:  # else its own lines tell more
            self._sick(failure("sick", f"{safe_text(wrong)}, though it was loaded", lines=self.ring.texts()))

    def _wrong(self, verdict: Verdict) -> None:
        pattern = verdict.pattern
        if pattern.name == "router_child" and not self._ready:
            self._doom_load(line_failure([verdict.text], verdict))
        elif pattern.acts == "always" or (pattern.acts == "load" and not self._ready):
            self._doomed = True
            wait_s = _GATHER_S if pattern.rank >= TELLING else _GATHER_VAGUE_S
            if self._condemning is None or self._condemning.when() > self._loop.time() + wait_s:
                if self._condemning is not None:
                    self._condemning.cancel()
                self._condemning = self._later(wait_s, lambda: self._condemn(verdict))

    def _condemn(self, verdict: Verdict) -> None:
        why = line_failure(self.ring.texts(), verdict)
        if self._ready:
            self._sick(why)
        else:
            self._doom_load(why)

    def _sick(self, why: Failure) -> None:
        self._doomed = True
        if self._doom is None and not self._asked:
            self._doom = why
            self._tell(news.Sick(self.instance, why))

    def _doom_load(self, why: Failure) -> None:
        self._doomed = True
        if self._doom is None and not self._asked and not self._ready:
            self._doom = why
            self._tell(news.LoadFailed(self.instance, why))

    def _watch_load(self) -> None:
        limit = self._world.settings.load_timeout_s
        if not limit or self._ready or self._asked:
            return
        quiet = self._loop.time() - self._last_sign
        if quiet >= limit:
            lines = self.ring.texts()
            last = f"; it last said: {lines[-1]}" if lines else ""
            self._doom_load(
                failure(
                    "timeout",
                    f"no progress and no output for {limit:g} s{last}",
                    "raise --load-timeout, or look at its log",
                    lines,
                )
            )
        else:
            self._later(limit - quiet + 0.001, self._watch_load)

    # ---- small things

    def _note_executable(self) -> None:
        if self._noted is not None and self._process is not None and not self._process.reaped:
            self._noted.settled()

    def _read_up(self) -> None:
        """Read what it wrote before what was just learnt of it by another way."""
        if self._output is not None:
            self._output.pull_stderr()

    def _tell_sizes(self) -> None:
        total = self._output.sizes.total if self._output is not None else None
        if total is not None and not self._gone.is_set():
            self._tell(news.Sized(self.instance, total))

    def _sign(self) -> None:
        self._last_sign = self._loop.time()

    def _oom(self, text: str, count: int) -> None:
        self._tell(news.OomSeen(self.instance, text, count))

    def _lines(self, lines: tuple[str, ...]) -> None:
        self._tell(news.Line(self.instance, lines))

    def _tell(self, item: news.News) -> None:
        """Send news; what a late timer or answer would say after ``Exited`` is of nobody any more."""
        if not self._told_exit:
            self._told_exit = isinstance(item, news.Exited)
            self._world.sink(item)

    def _later(self, delay_s: float, call: Callable[[], None]) -> asyncio.TimerHandle | None:
        if self._gone.is_set():
            return None
        now = self._loop.time()
        self._timers = [timer for timer in self._timers if not timer.cancelled() and timer.when() > now]
        self._timers.append(self._loop.call_later(max(delay_s, _SOONEST_S), call))
        return self._timers[-1]

    def _background(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
