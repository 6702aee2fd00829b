"""Which tokens of a model's answers are calls of tools is read from their names, and no tokenizer is too odd for that."""

from types import SimpleNamespace
from typing import Any

import pytest

from kv_cache_manager_v2.integrations.vllm_options import find_call_tokens

CALLS = (
    "<tool_call>", "</tool_call>", "<|tool_call|>", "[TOOL_CALLS]", "<|tool_calls_section_end|>", "<\uff5ctool\u2581calls\u2581end\uff5c>",
    "<start_function_call>", "<|call|>", "<|eom_id|>", "<|eom|>", "<|python_tag|>", "<|action_start|>",
)  # fmt: skip
OTHERS = ("<|im_end|>", "<tool_response>", "<|eot_id|>", "<think>", "<|return|>", "<|recall|>", "<bos>", "")


def tokenizer_with(vocabulary: Any) -> Any:
    return SimpleNamespace(get_added_vocab=lambda: vocabulary)


def test_calls_are_known_by_their_names() -> None:
    vocabulary = {name: number for number, name in enumerate(CALLS + OTHERS, 100)}
    assert find_call_tokens(tokenizer_with(vocabulary)) == set(range(100, 100 + len(CALLS)))


@pytest.mark.parametrize("vocabulary", [None, 7, [1, 2], {}, {"<tool_call>": "7"}, {7: 7}, {"<tool_call>": None}, {"<tool_call>": [7]}])
def test_a_tokenizer_that_tells_no_names_has_no_calls(vocabulary: Any) -> None:
    assert find_call_tokens(tokenizer_with(vocabulary)) == frozenset()


def refuse() -> Any:
    raise NotImplementedError("no tokenizer of ours")


@pytest.mark.parametrize("tokenizer", [None, object(), SimpleNamespace(get_added_vocab=None), SimpleNamespace(get_added_vocab=refuse)])
def test_what_is_no_tokenizer_has_no_calls(tokenizer: Any) -> None:
    assert find_call_tokens(tokenizer) == frozenset()
