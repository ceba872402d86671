"""The operations of an OpenAPI document as tools (`openapi_catalog`), which send requests to a
server that your code names (`ApiServer`). Needs the extra `openapi`.

Whoever wrote the document, its tools count as imported. They ask for approval and their results are
untrusted until their author trusts them, and only declared parts of their results are shown.
"""

from toolcrib.bridges.openapi.catalog import RefusedOperation, openapi_catalog
from toolcrib.bridges.openapi.request import ApiRequest
from toolcrib.bridges.openapi.server import ApiServer, HttpApi

__all__ = ["ApiRequest", "ApiServer", "HttpApi", "RefusedOperation", "openapi_catalog"]
