"""Strings and token ids: tokenizer, templates, detokenizer, stops, grammar, reasoning and tool formats."""
