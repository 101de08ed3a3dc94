"""Configuration: options, presets and discovery, resolved once into ``spec.Settings`` and a ``discovery.Catalog``.

``resolve.resolve`` is the way in. The rest, in the order in which it works: ``options`` (one table of every option, its environment
names and its help), ``ini`` and ``preset`` (llama.cpp's preset files), ``keys`` (which key means what), ``folders`` and ``cache``
(models on disk), ``discovery`` (all of it made one catalogue).
"""
