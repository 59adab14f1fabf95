"""GPUtil, asked in a program of its own."""
