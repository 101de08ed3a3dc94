"""Parts for tests, shipped so that tests need no helpers: simulated servers, worlds, a rig for the whole."""
