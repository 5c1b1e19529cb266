"""A strict Content-Security-Policy on every page, as a project may have. From 6.0 on, Django can send one itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.http import HttpRequest, HttpResponseBase

POLICY = {"default-src": ["'self'"], "frame-ancestors": ["'none'"]}


class PolicyMiddleware:
    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self.get_response(request)
        response.headers["Content-Security-Policy"] = "; ".join(f"{key} {' '.join(POLICY[key])}" for key in POLICY)
        return response
