#!/usr/bin/env python3
"""Every command of the console; `manage.py up` starts it."""

import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")
    try:
        from django.core.management import execute_from_command_line
    except ImportError:
        sys.exit("Django is missing: use `uv run manage.py …`, which installs what it needs.")
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
