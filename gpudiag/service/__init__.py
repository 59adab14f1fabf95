"""What the service runs on: the machine under watch, and the runs that people start from the page."""
