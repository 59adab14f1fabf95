"""The kubelet's account of which container holds which GPU; the only room that loads grpc."""
