#!/usr/bin/env python
"""Django's command line; `manage.py up` and `run-production` start everything on one machine."""

import os
import signal
import sys


def main() -> None:
    if sys.argv[1:]:
        sys.argv[1] = sys.argv[1].replace("-", "_")  # a command's module has no hyphen
    if sys.argv[1:2] == ["run_production"]:  # whatever the environment says
        os.environ["DJANGO_SETTINGS_MODULE"] = "heteroflow.settings.production"
    elif sys.argv[1:2] != ["up"]:
        from apps.ops.production import kept

        kept.take(os.environ)
    if sys.argv[1:2] == ["simulate"]:  # also before the first start, where there are no keys
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "heteroflow.settings.paper")
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "heteroflow.settings.embedded")
    if sys.argv[1:2] in (["up"], ["run_production"]) and "--help" not in sys.argv:
        # Until the supervisor takes the signals: Ctrl-C ends it at once, and shows no traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        from apps.ops import prelaunch
        from apps.ops.production import prelaunch as production

        prelaunch.prepare_or_exit(prelaunch.prepare if sys.argv[1] == "up" else production.prepare)
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
