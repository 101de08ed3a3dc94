"""Configuration: options, presets and discovery, resolved once into ``spec.Settings`` and a ``discovery.Catalog``.

``resolve.resolve`` is the way in. The rest, in the order in which it works: ``rows`` and ``options`` (every option),
``ini``, ``keys`` and ``preset`` (llama.cpp's preset files), ``server`` (the llama-server and what it understands),
``folders`` and ``cache`` (models on disk), ``discovery`` (all of it made one catalogue). ``examine`` reads on past
faults and tells them all, ``diff`` says what a new configuration changed, ``watch`` when it is time to read it again.
"""
