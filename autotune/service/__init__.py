"""The HTTP service: queue studies, watch them live, browse reports, fetch exports."""

from autotune.service.server import ServiceError, serve

__all__ = ["ServiceError", "serve"]
