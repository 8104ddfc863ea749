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
    from django.conf import settings
    from django.db import OperationalError

    from console.env import SettingError

    try:
        execute_from_command_line(sys.argv)
    except SettingError as exc:
        print(exc, file=sys.stderr)
        sys.exit(2)
    except OperationalError as exc:
        if settings.DATABASE_KNOWN:
            why = f"the database does not answer: {' '.join(str(exc).split())}"
        else:
            why = (
                "no console runs on this state folder (CONSOLE_STATE_DIR) and DATABASE_URL is not "
                "set: start one with `manage.py up`"
            )
        print(why, file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
