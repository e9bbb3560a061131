"""Llama and its relatives: GQA, rotary positions, RMSNorm, SwiGLU; Mistral, SmolLM2, Qwen2, Qwen3."""
