"""What the service is built on: the watched machine, and the runs that users start from the page."""
