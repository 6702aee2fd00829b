"""The match of a prompt as `create_kv_cache` found it: how far its attention and its recurrent state could be reused."""

from dataclasses import dataclass

from ..base.value import Value


@dataclass(frozen=True)
class MatchedTokens(Value):
    """Both are lengths from the prompt's first token on.

    A sequence begins at the shorter of the two, its committed tokens, unless `max_state_replay_tokens` lets it begin at
    ``attention_tokens`` with a state that is behind: then the engine must run tokens ``state_tokens .. attention_tokens - 1``
    through the recurrent layers again, before anything else.
    """

    attention_tokens: int
    """Pages for so many tokens were there for every attention layer."""
    state_tokens: int
    """The state that the sequence begins with is that after so many tokens."""
    planned_tokens: int = 0
    """The last so many of ``attention_tokens`` were planned by other sequences and not committed (`KVCache.publish_planned`)."""
    lossy_tokens: int = 0
    """The last so many matched tokens lie in or behind the first block of which a page was packed with loss since it was written."""

    @property
    def num_replay_tokens(self) -> int:
        """Tokens between the two."""
        return self.attention_tokens - self.state_tokens
