#!/usr/bin/env python
"""Django's command line; `manage.py up` starts everything on one machine."""

import os
import signal
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "heteroflow.settings.embedded")
    if sys.argv[1:2] == ["up"] and "--help" not in sys.argv:
        # Until the supervisor takes the signals: Ctrl-C ends it at once, and shows no traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        from apps.ops.prelaunch import prepare_or_exit

        prepare_or_exit()
    # Any command may send hints; without this they would go to a broker of Celery's own choice.
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line

    try:
        import heteroflow.celery  # noqa: F401

        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        sys.exit(f"The settings can not be used: {error}")


if __name__ == "__main__":
    main()
