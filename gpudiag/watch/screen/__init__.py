"""The picture on a terminal, by Textual: the only part of gpudiag that imports it.

What is drawn is decided in `gpudiag/watch/compose.py`.
"""
