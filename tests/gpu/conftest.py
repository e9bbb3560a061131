"""Tests for cards import Triton, which only CUDA builds of torch bring: without it they are not collected."""

import importlib.util

_NEED_TRITON = ["test_glm_*.py", "test_exl3_chunk.py", "test_two_cards.py"]
collect_ignore_glob = [] if importlib.util.find_spec("triton") else _NEED_TRITON
