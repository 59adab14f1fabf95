"""The kernel log: where it is kept, its lines, and which of them are kept."""
