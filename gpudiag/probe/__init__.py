"""Ask a source what it sees, now: numbers and facts, never a verdict."""
