"""The engine: drives the scheduler on the core's event loop.

``driver.Engine`` hands events in and carries actions out; ``gate`` is its face towards the front
door, ``control`` the one towards the management API, ``picture`` makes the snapshot, ``desk`` keeps the memory's books.
"""
