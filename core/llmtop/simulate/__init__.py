"""Runs the real scheduler on a virtual clock: what would this load have been with another cap, another budget?

``world`` is the simulated machine room (children take time to load and to leave), ``trace`` reads what was asked when,
``outcome`` measures a run, ``sweep`` runs many settings, ``advice`` picks one and says why, ``timeline`` draws one.
``baselines`` are other policies behind the scheduler's own interface, ``bound`` is what no policy can beat.
"""
