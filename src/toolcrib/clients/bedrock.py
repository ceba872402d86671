"""Amazon Bedrock, and every server that speaks its Converse wire."""

from __future__ import annotations

import os
import re
from typing import Unpack
from urllib.parse import urlsplit

from toolcrib.clients.address import checked_url
from toolcrib.clients.base import Options, WireClient, with_headers
from toolcrib.clients.keys import key_of
from toolcrib.clients.signing import SigningTransport
from toolcrib.errors import RequestError
from toolcrib.wire import BEDROCK_CONVERSE

_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
_AWS = (".amazonaws.com", ".amazonaws.com.cn", ".api.aws")


class BedrockClient(WireClient):
    """A model behind Bedrock's Converse wire.

    `model` is the id of a model or an inference profile, or an ARN. `region` defaults to `AWS_REGION`,
    then `AWS_DEFAULT_REGION`; `base_url` (what comes before `/model`) to Amazon's own for the region.
    `api_key` is one of Bedrock's and defaults to `AWS_BEARER_TOKEN_BEDROCK`; without one, requests to
    Amazon are signed with AWS credentials on their way to `transport` (by a `SigningTransport`, which
    you may also pass). A server that is not Amazon's gets neither: pass `api_key` if it wants one.
    Raises RequestError where a region is needed and there is none, MissingExtraError where requests
    have to be signed and botocore is not installed.
    """

    def __init__(
        self,
        model: str,
        *,
        region: str | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        **options: Unpack[Options],
    ) -> None:
        base = checked_url(base_url or f"https://bedrock-runtime.{_region(region)}.amazonaws.com")
        own = (urlsplit(base).hostname or "").endswith(_AWS)
        key = key_of(api_key, "AWS_BEARER_TOKEN_BEDROCK", looked_up=own, needed=False)
        given = options.get("transport")
        if own and not key and not isinstance(given, SigningTransport):
            timeouts = options.get("timeouts")
            signing = SigningTransport(given, region=_region(region), timeouts=timeouts)
            options = {**options, "transport": signing}
        super().__init__(
            BEDROCK_CONVERSE,
            model,
            base_url=base,
            **with_headers(BEDROCK_CONVERSE.auth(key) if key else {}, options),
        )


def _region(given: str | None) -> str:
    names = (given, *(os.environ.get(name, "") for name in _REGIONS))
    region = next((name.strip() for name in names if name and name.strip()), "")
    if not region:
        raise RequestError("there is no AWS region: set AWS_REGION, or pass region=…")
    if not re.fullmatch(r"[a-z0-9-]{1,40}", region):
        raise RequestError(f"{region!r} is no AWS region; one is called us-east-1")
    return region
