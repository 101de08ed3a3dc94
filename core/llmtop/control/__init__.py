"""The management API: llama.cpp's router routes and llmtop's own, one more upstream of the relay.

* ``port``: what it asks of the core.
* ``listing``: a model in the shape that llama.cpp's router gives it.
* ``feeds``: the two event streams.
* ``answers``: JSON and refusals as HTTP answers, small JSON bodies as structs.
* ``routes``: the routes, as one Starlette application.
* ``app``: that application on a Unix socket.

Keys, ``Host``, ``Origin``, content types and sizes of requests are the front door's business; it has checked them
before anything arrives here, and nothing else can reach the socket.
"""
