"""`make gpu`: everything that only a GPU can confirm, in one folder with a report.

`python -m tools.confirm_on_gpu` runs the steps of `plan.py`, each in a child with its own deadline, and
writes report.md and report.json after every one. Standard library only in this process, and nothing in it
touches a GPU.
"""
