"""The command line: `python -m console.cli`, without Django (docs/cli.md)."""
