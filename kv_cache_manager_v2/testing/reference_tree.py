"""All prefixes that were ever published, and which prefixes of a prompt are reusable with the pages that are left.

Plain and slow on purpose: a *node* is a block's tokens under its parent's, a number in the order of first publication;
a page is ``(node, group)``. The present pages are passed with each question, because dropping one is the manager's
choice. The rules are those of the design, written from its text and not from the code:

- a prefix of ``n`` tokens is reusable if, for every layer group, every block that is not stale at history ``n`` has
  its page; a block that the prefix ends inside may be any one that begins with those tokens; without partial reuse
  only one that ends where the prompt ends, with exactly those tokens;
- the longest such ``n`` wins. Where a block has many children, the library may look at the nearest of them only;
- a backoff is subtracted from the *content*: the tokens on a path of blocks in the tree, whatever pages these have, and behind
  it as many as the backoff takes with which a block began that was dropped on request.
"""

from collections.abc import Sequence, Set
from typing import Final, TypeAlias, final


from ..base.ids import TokenIdExt

Text: TypeAlias = tuple[TokenIdExt, ...]
Scope: TypeAlias = tuple[object, object]
"""(lora id, salt) as the user gave them."""
Page: TypeAlias = tuple[int, int]
"""(node, layer group)"""

SIBLINGS_SEARCHED: Final = 8
"""Up to so many candidates, the best of them must be found."""


@final
class GroupRule:
    """Which blocks the layers of one group still read."""

    __slots__ = ("window", "num_sink_blocks", "is_state")

    def __init__(self, window: int | None, num_sink_blocks: int, is_state: bool = False) -> None:
        self.window: Final = window
        self.num_sink_blocks: Final = num_sink_blocks
        self.is_state: Final = is_state  # recurrent layers read no block at all

    def is_stale(self, ordinal: int, history: int, tokens_per_block: int) -> bool:
        """The next token is at position ``history`` and reads positions ``history + 1 - window .. history``."""
        if self.is_state:
            return True
        if self.window is None:
            return False
        first_read = history + 1 - self.window
        is_sink = ordinal < self.num_sink_blocks
        return not is_sink and (ordinal + 1) * tokens_per_block <= first_read


@final
class ReferenceMatch:
    """``best`` tokens are reusable; a result from ``least`` on is allowed if it is reusable as well."""

    __slots__ = ("best", "least", "lengths")

    def __init__(self, best: int, least: int, lengths: set[int]) -> None:
        self.best: Final = best
        self.least: Final = least
        self.lengths: Final = lengths

    def allows(self, num_tokens: int) -> bool:
        return num_tokens == self.best or (self.least <= num_tokens and num_tokens in self.lengths)


@final
class ReferenceTree:
    """Nodes are never removed. ``ever_published``: the pages that existed at some time."""

    __slots__ = (
        "ever_published", "dropped", "_tokens_per_block", "_rules", "_roots", "_retired", "_parents", "_tokens", "_children", "_by_text",
    )  # fmt: skip

    def __init__(self, tokens_per_block: int, rules: Sequence[GroupRule]) -> None:
        self.ever_published: Final[set[Page]] = set()
        self.dropped: Final[set[int]] = set()
        """Nodes dropped on request."""
        self._tokens_per_block: Final = tokens_per_block
        self._rules: Final = rules
        self._roots: Final[dict[Scope, int]] = {}
        self._retired: Final[dict[tuple[Scope, int], int]] = {}  # roots by scope and by the epoch that ended with them
        self._parents: Final[list[int]] = []
        self._tokens: Final[list[Text]] = []
        self._children: Final[list[list[int]]] = []
        self._by_text: Final[dict[tuple[int, Text], int]] = {}

    # -- nodes --------------------------------------------------------------------------------------------------------

    def root(self, scope: Scope) -> int:
        node = self._roots.get(scope)
        if node is None:
            node = self._new_node(-1, ())
            self._roots[scope] = node
        return node

    def retire(self, scope: Scope, epoch: int) -> None:
        """The scope begins anew; what it had is below a retired root."""
        self.dropped.clear()
        node = self._roots.pop(scope, None)
        if node is not None:
            self._retired[scope, epoch] = node

    def retired_root(self, scope: Scope, epoch: int) -> int:
        return self._retired[scope, epoch]

    def is_retired(self, node: int) -> bool:
        while self._parents[node] >= 0:
            node = self._parents[node]
        return node in self._retired.values()

    def scopes(self) -> list[Scope]:
        return list(self._roots)

    def child(self, parent: int, tokens: Text) -> int:
        """The node with these tokens below ``parent``; made if there is none."""
        node = self._by_text.get((parent, tokens))
        if node is None:
            node = self._new_node(parent, tokens)
            self._by_text[(parent, tokens)] = node
            self._children[parent].append(node)
        return node

    def _new_node(self, parent: int, tokens: Text) -> int:
        self._parents.append(parent)
        self._tokens.append(tokens)
        self._children.append([])
        return len(self._parents) - 1

    def tokens(self, node: int) -> Text:
        return self._tokens[node]

    def parent(self, node: int) -> int:
        """The node's parent; negative for a root."""
        return self._parents[node]

    def children(self, node: int) -> list[int]:
        return list(self._children[node])

    def depth(self, node: int) -> int:
        """The block's ordinal."""
        depth = -1
        while self._parents[node] >= 0:
            depth += 1
            node = self._parents[node]
        return depth

    def find_exact(self, scope: Scope, text: Text) -> int | None:
        """The node of exactly this prefix, if there ever was one."""
        node = self._roots.get(scope)
        for begin in range(0, len(text), self._tokens_per_block):
            if node is None:
                return None
            node = self._by_text.get((node, text[begin : begin + self._tokens_per_block]))
        return node

    # -- matching -----------------------------------------------------------------------------------------------------

    def match(
        self, scope: Scope, text: Text, present: Set[Page], with_partial_blocks: bool, lost: Set[Page] = frozenset()
    ) -> ReferenceMatch:
        """The reusable prefixes of ``text``, given the present pages. The library need not look beyond the first block with a lost
        page, even if that block is out of window, or another one begins like it."""
        size = self._tokens_per_block
        node = self._roots.get(scope)
        path: list[int] = []
        lengths = {0}
        least = 0
        before_lost: int | None = None
        num_candidates = 0
        position = 0
        while node is not None:
            # ``path`` holds the blocks of text[:position]; what can end in the next block?
            rest = text[position : position + size]
            candidates = [child for child in self._children[node] if self._num_common(child, rest) > 0]
            for child in candidates:
                for num_tokens in range(1, self._num_common(child, rest) + 1):
                    is_exact = self._tokens[child] == rest and num_tokens == len(rest)
                    if num_tokens < size and not with_partial_blocks and not is_exact:
                        continue
                    if self.is_reusable([*path, child], position + num_tokens, present):
                        lengths.add(position + num_tokens)
                        if num_tokens == size or not with_partial_blocks:
                            least = position + num_tokens
            has_page = [child for child in candidates if self._has_any_page(child, present)]
            num_candidates = max(num_candidates, len(has_page))
            if before_lost is None and any([self._has_any_page(child, lost) for child in candidates]):
                before_lost = max([length for length in lengths if length <= position])
            node = self._by_text.get((node, rest)) if len(rest) == size else None
            if node is not None:
                path.append(node)
                position += size
        best = max(lengths)
        if num_candidates <= SIBLINGS_SEARCHED:
            least = best
        return ReferenceMatch(best, least if before_lost is None else min(least, before_lost), lengths)

    def count_content(self, scope: Scope, text: Text, in_tree: Set[int], with_partial_blocks: bool, backoff: int) -> int:
        """The most leading tokens of ``text`` on a path of blocks in the tree: those of ``in_tree``, and all above them. Of blocks dropped
        on request below such a path as many count as ``backoff``."""
        size = self._tokens_per_block
        there: set[int] = set()
        for node in in_tree:
            while node >= 0 and node not in there:
                there.add(node)
                node = self._parents[node]
        most = 0
        above = self._roots.get(scope)
        position = 0
        while above is not None and above in there:
            rest = text[position : position + size]
            for child in self._children[above]:
                if child in there and (with_partial_blocks or self._tokens[child] == rest):
                    most = max(most, position + self._num_common(child, rest))
                if child in self.dropped and not any([isinstance(token, bytes) for token in self._tokens[child]]):
                    most = max(most, position + min(self._num_common(child, rest), backoff))
            above = self._by_text.get((above, rest)) if len(rest) == size else None
            position += size
        return most

    def partial_matches(self, scope: Scope, text: Text, num_tokens: int, present: Set[Page]) -> list[int]:
        """The blocks that may be used for the last, partial block of a match of ``num_tokens``."""
        size = self._tokens_per_block
        num_whole = num_tokens // size
        node = self._roots[scope]
        path: list[int] = []
        for ordinal in range(num_whole):
            node = self._by_text[(node, text[ordinal * size : (ordinal + 1) * size])]
            path.append(node)
        rest = text[num_whole * size : num_tokens]
        return [
            child
            for child in self._children[node]
            if self._num_common(child, rest) == len(rest) and self.is_reusable([*path, child], num_tokens, present)
        ]

    def _num_common(self, node: int, rest: Text) -> int:
        count = 0
        for ours, theirs in zip(self._tokens[node], rest):
            if ours != theirs:
                return count
            count += 1
        return count

    def _has_any_page(self, node: int, present: Set[Page]) -> bool:
        return any([(node, group) in present for group in range(len(self._rules))])

    def is_reusable(self, path: list[int], num_tokens: int, present: Set[Page]) -> bool:
        """Whether that many tokens, which end in the last block of the path, have all pages that the next token reads."""
        size = self._tokens_per_block
        for group, rule in enumerate(self._rules):
            # The last blocks first: a window needs them.
            for ordinal in range(len(path) - 1, -1, -1):
                if (path[ordinal], group) not in present and not rule.is_stale(ordinal, num_tokens, size):
                    return False
        return True
