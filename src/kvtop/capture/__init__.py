"""Real requests, one room a step: the byte splice (tap), the process beside it that reads what passed (recorder), what
bodies say (api), which turn follows which (conversations), the turns on disk (store), other tools' captures
(importers), and how taps are started, found and stopped (control). A turn itself is `turn.py`."""
