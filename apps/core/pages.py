"""Pages of lists: `{items, total, page, page_size}`."""

from typing import Any

from rest_framework.pagination import PageNumberPagination
from rest_framework.response import Response


class Pages(PageNumberPagination):
    """`?page=2&page_size=50` (at most 200)."""

    page_size_query_param = "page_size"
    max_page_size = 200

    def get_paginated_response(self, data: Any) -> Response:
        assert self.page is not None
        return Response(
            {
                "items": data,
                "total": self.page.paginator.count,
                "page": self.page.number,
                "page_size": self.page.paginator.per_page,
            }
        )

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        integer = {"type": "integer"}
        return {
            "type": "object",
            "required": ["items", "total", "page", "page_size"],
            "properties": {
                "items": schema,
                "total": integer,
                "page": integer,
                "page_size": integer,
            },
        }
