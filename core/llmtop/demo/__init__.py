"""``llmtop demo``: models written on the spot, children real or simulated, and a little traffic to look at."""
