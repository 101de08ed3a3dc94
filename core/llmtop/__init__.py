"""llmtop's core: a serialized-swap scheduler for local language model servers, and all it stands on.

The rooms, by what they are for:

* ``scheduler``: the pure state machine. Events in, actions out; no I/O, no clock.
* ``engine``: drives it: carries its actions out and brings the world's news in.
* ``children``: spawn, readiness, stop ladder, exits, log rings, the failure classifier, the guardian.
* ``frontdoor``: the HTTP relay that clients talk to.
* ``control``: the management API, one more upstream of the relay.
* ``memory``: probes, budget, settle gate, GGUF estimates, learned footprints.
* ``config``: options, presets, model discovery. ``cli``: the commands.
* ``neighbours``: other programs' files and formats: llama-swap, launchd, systemd, Grafana, common clients.
* ``simulate``: the scheduler on a virtual clock. ``journal`` and ``record``: what happened, kept.
* ``core``: all of it started and ended in order, on a thread of its own; ``embed`` and ``remote``: the ways to a view.
* ``sse``: server-sent events as they come off the wire.
* ``snapshot`` and ``client``: what every view sees and says; nothing else passes between core and view.
"""

__version__ = "0.1.0"
