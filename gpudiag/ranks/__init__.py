"""Run `module:function` on N ranks and report what became of each, whatever the function does."""
