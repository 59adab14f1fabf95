"""`gpudiag demo` without a server: recorded once, and shown by the page from files alone."""
