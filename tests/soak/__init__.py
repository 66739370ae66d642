"""Load and abuse: the app as it is served, in a process of its own, against visitors who mean no good.

`make soak` runs the whole of it and writes the figures into benchmarks/results/soak.json; tests/test_abuse.py is the
quick version. `cases.py` holds both: what is done to the server, what is measured, and what must hold.
"""
