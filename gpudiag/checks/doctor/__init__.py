"""What of gpudiag works on a machine: its parts, and what each command needs of them."""
