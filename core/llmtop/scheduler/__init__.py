"""The scheduler: a pure state machine that decides who loads, who goes and who waits.

``Machine.handle(event, now)`` takes ``events`` and gives ``actions``. ``state`` is what it remembers, ``room`` answers
whether a model fits and who would have to go, ``queue`` moves the head; ``requests``, ``children``, ``verbs`` and
``timers`` change the state by what happened. ``reasons`` puts it into words, ``checks`` says what must hold.
"""
