"""The HTTP relay that clients talk to; ``server.FrontDoor`` is the whole of it, ``gate`` what it asks of the core."""
