"""The nouns: frozen dataclasses, no I/O, standard library only. Import each from its own file."""
