"""The view in a browser: ``server`` gives the page and guards it, ``page`` runs a tab's process, ``driver`` is in it.

textual-serve carries bytes between a browser and a Textual program, and has the terminal for the page. It knows no
keys, starts programs by a shell and does not see to their end: that is what is here.
"""
