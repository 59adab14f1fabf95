"""Run `module:function` on N ranks, and know what became of each; nothing here knows what it runs."""
