"""Tokens as bytes: no two different lists of tokens are encoded alike, wherever the library writes them down."""

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import example, given
from hypothesis import strategies as st
from kv_cache_manager_v2 import ReuseScope
from kv_cache_manager_v2.base.ids import TokenIdExt
from kv_cache_manager_v2.events.block_digest import encode_scope, encode_tokens
from kv_cache_manager_v2.testing.journal_reader import JournalReader
from kv_cache_manager_v2.journal.journal_writer import JournalWriter
from kv_cache_manager_v2.reuse.digest_table import DigestTable
from kv_cache_manager_v2.reuse.token_packing import pack_tokens, unpack_tokens

# Ids and digests made of few pieces, those that mean something to an encoding above all, so that two lists are often nearly alike.
_PIECES = [b"\xff\xff\xff\xff", b"\x04\x00\x00\x00", b"\x00\x00\x00\x00", b"\x00", b"a", b"\x04"]
_digests = st.lists(st.sampled_from(_PIECES), min_size=1, max_size=6).map(b"".join)
_ids = st.sampled_from([0, 1, 4, 97, 0x61616161, 2**31 - 1])
_lists = st.lists(st.one_of(_ids, _digests), max_size=5)


def decode(encoded: bytes) -> list[TokenIdExt]:
    """Written after the docstring of `block_digest`, not after its code."""
    tokens: list[TokenIdExt] = []
    while encoded:
        head, encoded = encoded[:4], encoded[4:]
        if head == b"\xff\xff\xff\xff":
            length = int.from_bytes(encoded[:8], "little")
            tokens.append(encoded[8 : 8 + length])
            encoded = encoded[8 + length :]
        else:
            tokens.append(int.from_bytes(head, "little"))
    return tokens


def test_golden_bytes() -> None:
    """0x104 is 04 01 00 00; the digest is its tag, a length of 2 in 8 bytes, and itself."""
    expected = "04010000" "ffffffff" "0200000000000000" "6869" "00000000"
    assert encode_tokens([0x104, b"hi", 0]).hex() == expected


@given(_lists)
@example([b"aaaa", b"\xff\xff\xff\xffcccc"])
@example([b"aaaa\xff\xff\xff\xff", b"cccc"])
def test_what_is_hashed_can_be_read_back(tokens: list[TokenIdExt]) -> None:
    """What can be read back is of one list only."""
    assert decode(encode_tokens(tokens)) == tokens


@given(_lists, _lists)
def test_different_tokens_are_packed_differently(first: list[TokenIdExt], second: list[TokenIdExt]) -> None:
    """The tree compares packed tokens: of one table of digests."""
    digests = DigestTable()
    packed = [pack_tokens(tokens, digests, True) for tokens in (first, second)]
    assert (packed[0] == packed[1]) == (first == second)
    assert [unpack_tokens(piece, digests) for piece in packed] == [first, second]


@given(st.lists(_lists, max_size=4))
def test_journals_read_back_what_was_written(lists: list[list[TokenIdExt]]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "journal"
        writer = JournalWriter(str(path), b"")
        for tokens in lists:
            writer.mixed_tokens(tokens)
        writer.close()
        reader = JournalReader(path.read_bytes())
        assert [reader.tokens() for _ in lists] == lists


_salts = st.one_of(st.none(), st.integers(-20, 200), st.text("n1i;s:0", max_size=6))


@given(st.tuples(_salts, _salts), st.tuples(_salts, _salts))
def test_different_scopes_are_hashed_differently(
    first: tuple[int | str | None, int | str | None], second: tuple[int | str | None, int | str | None]
) -> None:
    scopes = [
        ReuseScope(lora_id if isinstance(lora_id, int) else None, salt) for lora_id, salt in (first, second)
    ]
    encoded = [encode_scope(scope.lora_id, scope.salt) for scope in scopes]
    assert (encoded[0] == encoded[1]) == (scopes[0] == scopes[1])
