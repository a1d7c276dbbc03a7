"""A tokenizer whose tokens are characters, for tests without transformers."""

from __future__ import annotations

from collections.abc import Sequence

END, END_OF_TEXT = "\ue000", "\ue001"
"""Of a turn, and of a text; a model may end an answer by either."""


class Letters:
    """What of a tokenizer of transformers conversations use; one token is one character."""

    eos_token = END
    eos_token_id = ord(END)

    def __init__(self, end: str = END, chat_template: str = "chatml") -> None:
        """Make one whose chat template ends each message with `end`."""
        self._end = end
        self.chat_template = chat_template

    def apply_chat_template(
        self, messages: Sequence[dict[str, str]], *, add_generation_prompt: bool, tokenize: bool
    ) -> str:
        """Write messages as ChatML does."""
        said = "".join(f"<{each['role']}>{each['content']}{self._end}\n" for each in messages)
        return said + ("<assistant>" if add_generation_prompt else "")

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        """Return the tokens of a text."""
        return {"input_ids": [ord(letter) for letter in text]}

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Return the text of tokens."""
        text = "".join(map(chr, ids))
        return text.replace(END, "").replace(END_OF_TEXT, "") if skip_special_tokens else text
