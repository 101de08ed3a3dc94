"""What a llama-swap configuration may say that a preset cannot, and what llmtop does in its place."""

from __future__ import annotations

OF_ALL: dict[str, str] = {
    "apiKeys": "keys do not stand in a preset: put them into a file, one a line, and give --api-key-file FILE",
    "healthCheckTimeout": "give --load-timeout SECONDS (counted from a load's last progress or output)",
    "startPort": "llmtop takes free ports itself",
    "logLevel": "nothing to set; llmtop logs MODEL shows a child's output",
    "logTimeFormat": "nothing to set",
    "logToStdout": "nothing to set; llmtop logs MODEL shows a child's output",
    "metricsMaxInMemory": "nothing to set; GET /metrics has the counters",
    "captureBuffer": "requests are not kept",
    "sendLoadingState": "a waiting stream gets comments (--heartbeat), no text in the answer",
    "includeAliasesInList": "aliases stand beside their model in /v1/models",
    "peers": "llmtop runs models on this machine only; other servers have no equivalent",
    "profiles": "set models-max to how many may run at once",
    "store": "nothing to set; what happened is kept in the state folder (--state-dir)",
    "performance": "nothing to set; llmtop doctor tells what is measured",
    "ui": "nothing to set; the screen is llmtop itself",
    "routing": "one queue in order of arrival; see --max-wait and --models-max",
}
"""Keys of the file."""

OF_MODEL: dict[str, str] = {
    "name": "there are no display names; an alias could carry it",
    "description": "there are no descriptions",
    "metadata": "/v1/models tells what the child tells of itself",
    "filters": "requests are passed on byte for byte; a sampling default can be set as an argument of llama-server",
    "concurrencyLimit": "requests wait instead of being refused; see --max-queue and llama-server's parallel",
    "timeouts": "see --client-stall and --drain-timeout",
    "sendLoadingState": "a waiting stream gets comments (--heartbeat), no text in the answer",
    "capabilities": "/v1/models tells what the child tells of itself",
}
"""Keys of a model."""
