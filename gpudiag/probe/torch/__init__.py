"""torch, asked in a program of the interpreter that it belongs to."""
