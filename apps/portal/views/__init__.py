"""Pages of the tenant portal, one module per area; the two error pages for the whole site."""

from apps.portal.views.errors import handler404, handler500

__all__ = ["handler404", "handler500"]
