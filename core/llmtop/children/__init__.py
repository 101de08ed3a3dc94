"""The model servers that llmtop runs: spawned, watched, read, stopped, and never left behind."""
