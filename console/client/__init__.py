"""A client of the console's REST API, without Django (docs/cli.md)."""
