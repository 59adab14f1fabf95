"""Where `gpudiag serve` listens by default (docs/decisions/0039-the-port-of-the-service.md)."""

SERVICE_PORT = 4783  # "GPUD" on the keys of a telephone
