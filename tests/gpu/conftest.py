"""Tests for cards import Triton, which only CUDA builds of torch bring: without it they are not collected."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("triton") else ["test_glm_*.py", "test_exl3_chunk.py"]
