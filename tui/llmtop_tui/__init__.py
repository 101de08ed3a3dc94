"""llmtop's face: the Textual screen. Knows the core only as a ``CoreClient`` and its snapshots."""
