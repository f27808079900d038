"""WSGI entry of a server process: console, portal, REST API and the agents' protocol in production."""

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "heteroflow.settings.production")
_django = get_wsgi_application()

from django.conf import settings  # noqa: E402
from granian.utils.proxies import wrap_wsgi_with_proxy_headers  # noqa: E402

import heteroflow.celery  # noqa: E402, F401 - hints are sent through the configured Celery application
from apps.ops.orphans import end_with_parent  # noqa: E402

end_with_parent()
# Whom a request is from is believed of our own proxies only: guessing is counted by address.
application = (
    wrap_wsgi_with_proxy_headers(_django, trusted_hosts=settings.TRUSTED_PROXIES)
    if settings.TRUSTED_PROXIES
    else _django
)
