"""`gpudiag watch`: what an engineer keeps open on a terminal.

Feeds give frames, `compose` makes the picture, `screen` draws it.
"""
