"""A module that cannot be imported, as a torch whose libraries are missing."""

raise OSError("libnccl.so.2: cannot open shared object file")
