"""The picture of a terminal in README.md, from what a real run printed."""
