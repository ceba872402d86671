"""The proxy of the environment: `HTTPS_PROXY`, `HTTP_PROXY` or `ALL_PROXY`, but for `NO_PROXY`."""

from __future__ import annotations

from urllib.parse import urlsplit

from toolcrib.clients.address import names_server
from toolcrib.errors import RequestError

_HERE = ("localhost", "::1")


def proxy_of(url: str) -> str | None:
    """The proxy for a URL, None for none. Raises RequestError for one that cannot be used.

    `proxy:3128` is `http://proxy:3128`, as curl has it. This machine is asked without one.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    import urllib.request  # 15 ms, which `import toolcrib` need not pay

    proxies = urllib.request.getproxies()
    if not proxies or host in _HERE or host.startswith("127."):
        return None
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    server = parts.netloc.rpartition("@")[2]  # with its port, which NO_PROXY may name
    if not proxy or any(map(urllib.request.proxy_bypass, (host, server))):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if not names_server(proxy):
        raise RequestError(
            "the proxy of the environment cannot be used: it must be an http:// one, and name a server"
        )
    return proxy
