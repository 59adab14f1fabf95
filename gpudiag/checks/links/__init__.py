"""Checks of what joins GPUs: NVLink and its fabric, PCIe, peer access, RDMA ports."""
