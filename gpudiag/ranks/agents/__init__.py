"""The processes that watch ranks, and how those of several machines work together."""
