"""The command line. Each file beside ``app`` is one group of commands; ``app.GROUPS`` is the list of them.

Nothing here knows the terminal view: ``llmtop_tui`` hands one in. Commands import what they need when they run, so that
the short ones stay short.
"""
