"""Amazon Bedrock's Converse and ConverseStream."""

from toolcrib.wire.bedrock_converse.wire import BEDROCK_CONVERSE

__all__ = ["BEDROCK_CONVERSE"]
