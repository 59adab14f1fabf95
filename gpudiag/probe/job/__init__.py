"""What can be seen from outside of a job that is already running.

It only reads, and no rank is stopped for it.
"""
