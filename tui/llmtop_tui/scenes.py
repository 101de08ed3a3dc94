"""Still pictures of a core, by name: for tests and for the pictures in the documentation."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from llmtop.snapshot import (
    EventLine,
    Failure,
    LogLine,
    Memory,
    Model,
    Oom,
    OomLine,
    Phases,
    Progress,
    QueueEntry,
    Request,
    Snapshot,
    Stop,
    Swap,
    Swaps,
)
from llmtop_tui.scene_parts import (
    AT,
    BASE,
    GEMMA,
    LLAMA,
    MEMORY,
    MISTRAL,
    NOMIC,
    OOM,
    PHI,
    QUEUE,
    QWEN,
    REQUESTS,
    SWAPS,
    URL,
    gib,
)


def _unloaded(*models: Model) -> tuple[Model, ...]:
    return tuple(Model(model.id, estimate_bytes=model.estimate_bytes) for model in models)


def cold() -> Snapshot:
    """Just started: nothing runs, nobody asked."""
    everything = _unloaded(QWEN, GEMMA, NOMIC, LLAMA, PHI, MISTRAL)
    memory = msgspec.structs.replace(MEMORY, wired=gib(2.3), used=gib(2.3), reserved=0, ours=0, others=gib(2.3))
    return msgspec.structs.replace(
        BASE,
        models=everything,
        running=0,
        memory=memory,
        swaps=Swaps(),
        events=(),
        log=(),
        requests_total=0,
        errors_total=0,
        uptime_s=4.0,
    )


def full() -> Snapshot:
    """All states at once: serving, loading, asleep, draining, waiting, failed."""
    return msgspec.structs.replace(
        BASE,
        models=(GEMMA, LLAMA, MISTRAL, NOMIC, PHI, QWEN),
        queue=QUEUE,
        requests=REQUESTS,
        next_swap=f"{PHI.id} in ~11 s, after {LLAMA.id}",
    )


def loading() -> Snapshot:
    """The first model on its way, somebody waits for it."""
    memory = msgspec.structs.replace(
        MEMORY, wired=gib(5.4), used=gib(5.4), reserved=gib(5.1), ours=gib(3.1), others=gib(2.3)
    )
    return msgspec.structs.replace(
        BASE,
        models=(GEMMA, *_unloaded(LLAMA, MISTRAL, NOMIC, PHI, QWEN)),
        running=1,
        memory=memory,
        queue=QUEUE[:1],
        requests=REQUESTS[2:5],
        swaps=Swaps(1, SWAPS[-1], SWAPS[-1:]),
    )


def oom() -> Snapshot:
    """A model ran out of memory; nobody has seen the line yet."""
    return msgspec.structs.replace(full(), oom=OOM)


def held() -> Snapshot:
    """The operator holds the queue."""
    waits = msgspec.structs.replace(PHI, reason="the queue is held")
    queue = (msgspec.structs.replace(QUEUE[1], position=1, reason="the queue is held", eta_s=None),)
    stays = msgspec.structs.replace(LLAMA, draining=False, reason="")
    return msgspec.structs.replace(
        BASE,
        hold=True,
        next_swap=f"{PHI.id}, evicts {LLAMA.id}, when the queue is released",
        models=(stays, MISTRAL, NOMIC, waits, QWEN),
        running=3,
        queue=queue,
        requests=(*REQUESTS[:2], REQUESTS[-1]),
    )


def sick() -> Snapshot:
    """A poisoned child, one that survived SIGKILL, and one whose memory is not back."""
    ill = msgspec.structs.replace(
        QWEN, pinned=False, sick=True, draining=True, reason="answers Compute error., 2 s to drain"
    )
    stuck = msgspec.structs.replace(
        LLAMA, state="stopping", stuck=True, draining=False, reason="survived SIGKILL: pid 48955 is in state D"
    )
    late = Model(
        GEMMA.id,
        settling=True,
        reserved_bytes=gib(5.1),
        footprint_bytes=gib(1.8),
        reason="settling, 1.8 of 5.1 GiB still out",
    )
    going = msgspec.structs.replace(
        NOMIC, state="stopping", reason="stopping for phi-4-mini-instruct-q8_0", kill_in_s=8.0
    )
    memory = msgspec.structs.replace(
        MEMORY, used=gib(23.1), wired=gib(23.1), stranded=gib(1.8), ours=gib(19.0), others=gib(2.3), pressure="warn"
    )
    return msgspec.structs.replace(
        BASE,
        models=(ill, stuck, late, going, PHI, MISTRAL),
        memory=memory,
        queue=QUEUE[1:],
        oom=OOM,
        exposed=True,
        faults=("a core loop stood still for 312 ms",),
    )


def unknown() -> Snapshot:
    """No probe works: every figure is missing and says why."""
    memory = Memory(total=gib(16), label="VRAM", sources={"used": "NVML: driver not loaded"})
    blind = msgspec.structs.replace(QWEN, footprint_bytes=None, in_flight=0)
    return msgspec.structs.replace(BASE, models=(blind, *_unloaded(PHI, MISTRAL)), running=1, memory=memory)


HOSTILE = "x [/var/x] [b]bold[/b] [@click=app.quit]go[/] \x1b]0;PWNED\x07 \x1b[31mred \u202eabc \x9b5m"


def hostile() -> Snapshot:
    """Brackets and escape sequences wherever text comes from outside."""
    bad = HOSTILE
    failure = Failure("crash", bad, lines=(bad, "[/"), hint=bad)
    models = (
        Model(
            bad,
            "loaded",
            1,
            11,
            12,
            reason=bad,
            args=(bad,),
            aliases=(bad,),
            in_flight=1,
            waiting=2,
            footprint_bytes=gib(2),
        ),
        Model("[/bold]", failure=failure, problem=bad),
        Model("[", "loading", 2, 13, 14, progress=Progress(bad, float("nan"), float("inf"), -1.0)),
    )
    return Snapshot(
        version=bad,
        pid=1,
        at=AT,
        url=URL,
        models_max_source=bad,
        server=bad,
        models=models,
        running=2,
        queue=(QueueEntry(bad, 1, 2, 3.0, bad, float("nan")),),
        next_swap=bad,
        requests=(
            Request(bad, bad, "running", 1.0, bad, bad),
            Request("q", bad, "queued", 1.0, bad, bad),
            Request("q2", bad, "queued", 1.0, bad, bad),
        ),
        memory=Memory(total=gib(8), limit=gib(8), used=gib(3), label=bad, sources={"limit": bad, "used": bad}),
        swaps=Swaps(1, None, (Swap(1, bad, bad, AT - 5, (bad,), bad, Phases(load_s=2.0), (Stop(bad, bad),)),)),
        oom=Oom(1, OomLine(AT, bad, bad, 1)),
        events=(EventLine(1, AT, bad, bad, bad),),
        log=(LogLine(1, AT, bad, bad),),
        faults=(bad,),
    )


SCENES: dict[str, Callable[[], Snapshot]] = {
    scene.__name__: scene for scene in (cold, full, loading, oom, held, sick, unknown, hostile)
}
