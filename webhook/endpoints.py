"""What is served where: reviews over TLS, health and metrics in plain text on a port of their own.

Probes and Prometheus come from the node and the monitoring namespace and trust no CA of ours; the API server
comes for reviews alone. So each port has only what its clients need, and a flood on one leaves the other
free. What always holds: what isn't a review is a 4xx with a sentence.
"""

from collections.abc import Callable
from typing import Final

from aiohttp import web

from webhook import metrics
from webhook.admission import Admission
from webhook.review import ReviewError
from webhook.server import Handler, Listener

JSON: Final = "application/json"


def reviews(admission: Admission, listener: Callable[[], Listener]) -> Handler:
    """POST /jobs, /pods, /queues."""
    paths = admission.paths

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        path = request.rel_url.raw_path
        if path not in paths:
            raise web.HTTPNotFound(text=f"Reviews go to {', '.join(sorted(paths))}.\n")
        if request.method != "POST":
            raise web.HTTPMethodNotAllowed(request.method, ["POST"], text="Reviews are sent by POST.\n")
        if request.content_type != JSON:
            raise web.HTTPUnsupportedMediaType(text=f"Reviews are sent as {JSON}.\n")
        async with listener().body(request) as body:
            try:
                answer = await admission.answer(path, body)
            except ReviewError as error:
                raise web.HTTPBadRequest(text=f"{error}\n") from error
        return web.Response(body=answer, content_type=JSON)

    return handle


def health(unready: Callable[[], str]) -> Handler:
    """GET /healthz, /readyz, /metrics. `unready` says why no review should come here now, or ""."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        if request.method not in ("GET", "HEAD"):
            raise web.HTTPMethodNotAllowed(request.method, ["GET", "HEAD"])
        match request.rel_url.raw_path:
            case "/healthz":
                return web.Response(text="ok\n")
            case "/readyz":
                why = unready()
                return web.Response(status=503 if why else 200, text=f"{why or 'ok'}\n")
            case "/metrics":
                return web.Response(body=metrics.exposition(), headers={"Content-Type": metrics.CONTENT_TYPE})
        raise web.HTTPNotFound(text="There are /healthz, /readyz and /metrics.\n")

    return handle
