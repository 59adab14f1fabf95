"""The command line: one file per command; each calls runs and render, nothing deeper."""
