"""The text side of one model, built once: tokenizer, chat template, output formats, grammars."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tandem.core.protocols import TokenConstraint
from tandem.text.types import ChatPrompt, ConstraintKind, ConstraintSpec, OutputOptions

if TYPE_CHECKING:
    from tandem.text.output import OutputProcessor
    from tandem.text.template import ChatTemplate
    from tandem.text.tokenizer import Tokenizer

__all__ = ["ChatPrompt", "ConstraintKind", "ConstraintSpec", "OutputOptions", "OutputProcessor", "TextBundle"]


class TextBundle:
    """Everything between strings and token ids for one model. Thread-safe after construction."""

    tokenizer: Tokenizer
    eos_token_ids: frozenset[int]
    """All of the model's end tokens: a sequence ends with any of them."""
    vocab_size: int
    """Rows of the model's output head where known (padding ids included), else the tokenizer's ids."""
    template: ChatTemplate | None
    chat_unavailable: str | None
    """Why ``template`` is None: one line that names the missing file."""
    reasoning_format: str | None
    tool_format: str | None

    @classmethod
    def from_folder(
        cls, path: Path, *, reasoning_format: str | None = None, tool_format: str | None = None
    ) -> TextBundle:
        """Read a Hugging Face folder.

        Formats are detected from the chat template unless named ("none" switches one off).
        Raises ModelNotFoundError (folder or tokenizer.json missing), ModelDamagedError (unreadable file,
        template syntax error with file and line), ModelUnsupportedError (a format name that is not known).
        """
        raise NotImplementedError

    @classmethod
    def from_gguf(
        cls, path: Path, *, reasoning_format: str | None = None, tool_format: str | None = None
    ) -> TextBundle:
        """Read a GGUF file's metadata. Raises as ``from_folder``; also ModelUnsupportedError for an unknown
        tokenizer model or pre-tokenizer."""
        raise NotImplementedError

    def encode_prompt(self, text: str) -> tuple[int, ...]:
        """Tokens of a completion prompt, with BOS where the model wants it. Control-token text counts as
        control tokens, as everywhere for raw prompts. At least one token unless ``text`` is empty and the
        model has no BOS."""
        raise NotImplementedError

    def encode_chat(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: dict[str, Any] | None = None,
    ) -> ChatPrompt:
        """Render and encode a conversation given in OpenAI's shapes.

        ``template_kwargs`` is ``chat_template_kwargs`` with a top-level ``reasoning_effort`` merged in.
        Control-token text inside message strings never becomes control tokens.
        Raises RequestError (400) for messages or tools of a wrong shape, an unknown role, an image part, an
        unknown effort, a template that refuses the conversation, or a model without a template.
        """
        raise NotImplementedError

    def output_processor(self, options: OutputOptions) -> OutputProcessor:
        """A fresh processor for one sequence. Raises RequestError (400) for tools of a wrong shape."""
        raise NotImplementedError

    def constraint(self, spec: ConstraintSpec) -> TokenConstraint:
        """A fresh constraint for one sequence; it takes hold after reasoning ends.

        Raises RequestError (400, ``spec.param``) if it cannot be compiled or satisfied, before anything is
        generated. Every sequence of a request (``n``) needs its own.
        """
        raise NotImplementedError
