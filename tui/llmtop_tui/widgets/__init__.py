"""Pure renderers: a snapshot's parts in, lines of styled text out. None of them knows an App."""
