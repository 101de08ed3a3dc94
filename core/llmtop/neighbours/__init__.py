"""What llmtop says to its neighbours.

``llama_swap`` reads another program's configuration, ``clients`` prints how to point a client at a running llmtop,
``units`` has it run by launchd or systemd, ``grafana.json`` draws its metrics.
"""
