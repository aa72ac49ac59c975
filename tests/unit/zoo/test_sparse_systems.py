"""Sparse attention as a setting of every Transformer of the zoo."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

import lmlab.zoo
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.protocols import LogProb
from lmlab.core.registry import catalogue, system_module
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers import sparse_pattern
from lmlab.layers.sparse_pattern import SparsePattern
from lmlab.zoo._transformer_config import TransformerConfig
