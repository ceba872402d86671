"""`openapi:FILE#URL` on the command line: a document, and the server that the user names for it."""

from __future__ import annotations

import os
import re

from toolcrib.bridges.openapi.catalog import openapi_catalog
from toolcrib.bridges.openapi.document import Document
from toolcrib.bridges.openapi.forms import security_schemes
from toolcrib.bridges.openapi.request import ApiRequest
from toolcrib.bridges.openapi.server import ApiServer
from toolcrib.errors import CapabilityError, SourceError
from toolcrib.kit.http import HttpAnswer
from toolcrib.tools.catalog import Catalog

KEY = "TOOLCRIB_KEY_"
"""The prefix of variables that hold keys. The name of a security scheme follows, in capitals."""


class _NoServer:
    """Used if nobody named a server, since the document's own server is only a claim."""

    async def send(self, request: ApiRequest) -> HttpAnswer:
        told = "name a server: --tools openapi:FILE#https://api.example.com/v1"
        raise CapabilityError(told, retryable=False)


def catalog_of(where: str) -> Catalog:
    """Return the tools of `FILE`, which can be read, or of `FILE#URL`, which run.

    Keys come from the environment: `TOOLCRIB_KEY_API_KEY` for the scheme `api_key`. They are sent
    to the named server and to no other. Raises the same errors as `openapi_catalog`.
    """
    file, _, url = where.partition("#")
    if not file:
        raise SourceError("openapi: needs a document: write openapi:FILE, or openapi:FILE#URL")
    document = Document(file)
    if not url:
        return openapi_catalog(document, http=_NoServer())
    variables = {
        name: KEY + re.sub(r"\W", "_", name).upper() for name in security_schemes(document)
    }
    keys = {name: os.environ[one] for name, one in variables.items() if os.environ.get(one)}
    return openapi_catalog(document, http=ApiServer(url, keys=keys))
