"""From whatever the user gives as tokens to packed native int32, in one pass.

Accepted: a list, tuple or other sequence of ``int`` / ``bytes`` (a content digest); a numpy int32 / int64 array,
``array.array("i")``, an int32 memoryview: any one-dimensional integer buffer. Ids are ``0 <= id < 2**31``. A value out of
range is a `ValueError`, an item of another type a `TypeError`; both name the position. Nothing is counted in the digest
table before all tokens are known to be good.
"""

from collections.abc import Sequence
from typing import Any, Final, cast

from librt.strings import read_i32_le, read_i64_le
from librt.vecs import vec
from mypy_extensions import i32, i64
from rawref import pack_int32

from ..base.checks import is_bytes, shown, to_int, to_plain_bytes, type_name
from ..base.ids import TokenIdExt
from .digest_table import DigestTable

TOKEN_BYTES: Final = 4
PAIR_BYTES: Final = 8
MAX_TOKEN_ID: Final = 2**31 - 1
_NUMPY_FROM: Final = 8192  # from here on numpy's fixed cost is less than our loop's
_FIRST_LOOK: Final = 1024
_GROWTH: Final = 8  # so that looking again at what is packed costs an eighth of one look


def pack_tokens(tokens: object, digests: DigestTable, acquire: bool, name: str = "tokens") -> bytes:
    """The tokens as packed int32; errors call them ``name``. Digests are counted once more if ``acquire``, else only looked up."""
    if type(tokens) is list:
        return _pack_list(cast("list[object]", tokens), digests, acquire, name)
    if isinstance(tokens, str) or is_bytes(tokens):
        hint = "tokenize it first" if isinstance(tokens, str) else "a digest is one token: wrap it in a list"
        raise TypeError(f"{name} must be a sequence of ids, not {type(tokens).__name__}; {hint}")
    if isinstance(tokens, (list, tuple)):
        return _pack_list(list(tokens), digests, acquire, name)
    buffer: Any = tokens
    try:
        view = memoryview(buffer)
    except TypeError:
        if isinstance(tokens, Sequence):
            return _pack_list(list(tokens), digests, acquire, name)
        raise TypeError(f"{name} must be a sequence of int / bytes or an integer buffer, not {type(tokens).__name__}") from None
    except ValueError as error:  # numpy: "cannot include dtype 'M' in a buffer"
        raise TypeError(f"{name} must be integers: {error}") from error
    if view.ndim == 0:
        raise TypeError(f"{name} must be a sequence of int / bytes or an integer buffer, not {type(tokens).__name__}")
    return _pack_buffer(view, name)


def view_of(tokens: object) -> memoryview | None:
    """Of a buffer; None of anything else."""
    buffer: Any = tokens
    try:
        return memoryview(buffer)
    except (TypeError, ValueError):
        return None


def pack_beginning(tokens: object, packed: bytes, digests: DigestTable, name: str) -> bytes:
    """More of the first tokens than the ``packed`` ones, eight times as many, for a look-up: a long list is not packed whole where the
    tree ends sooner. All tokens where they are no list of ids alone."""
    if type(tokens) is list:
        begin: i64 = len(packed) // TOKEN_BYTES
        end: i64 = max(begin * _GROWTH, _FIRST_LOOK)
        if end < len(tokens):
            ids = pack_int32(cast("list[object]", tokens), begin, end, 0)
            if ids is not None:
                return packed + ids if begin > 0 else ids
    return pack_tokens(tokens, digests, False, name)


def single_token(tokens: object) -> int:
    """The token id of a list or tuple with nothing else in it, as a decode step gives it; -1 for anything else."""
    token: object = None
    if isinstance(tokens, list) and len(tokens) == 1:
        token = tokens[0]
    elif isinstance(tokens, tuple) and len(tokens) == 1:
        token = tokens[0]
    if type(token) is int:
        if 0 <= token <= MAX_TOKEN_ID:
            return token
    return -1


def has_digest(packed: bytes) -> bool:
    """Whether some token is negative. Two tokens to a word: the upper bit of each half is a sign."""
    num_bytes: i64 = len(packed)
    signs: i64 = 0
    position: i64 = 0
    while position + 4 * PAIR_BYTES <= num_bytes:
        signs |= (
            read_i64_le(packed, position)
            | read_i64_le(packed, position + PAIR_BYTES)
            | read_i64_le(packed, position + 2 * PAIR_BYTES)
            | read_i64_le(packed, position + 3 * PAIR_BYTES)
        )
        position += 4 * PAIR_BYTES
    if signs < 0 or (signs >> 31) & 1 == 1:
        return True
    while position < num_bytes:
        if read_i32_le(packed, position) < 0:
            return True
        position += TOKEN_BYTES
    return False


def unpack_tokens(packed: bytes, digests: DigestTable) -> list[TokenIdExt]:
    """The tokens as the user gave them."""
    tokens: list[TokenIdExt] = []
    for token in memoryview(packed).cast("i"):
        tokens.append(token if token >= 0 else digests.digest_of(token))
    return tokens


def _pack_list(tokens: list[object], digests: DigestTable, acquire: bool, name: str) -> bytes:
    # All of them are good ids nearly always, so what is wrong with one is for a second look.
    ids = pack_int32(tokens, 0, len(tokens), 0)
    return _pack_items(tokens, digests, acquire, name) if ids is None else ids


def _pack_items(given: list[object], digests: DigestTable, acquire: bool, name: str) -> bytes:
    tokens = given.copy()  # an item's own code may change the caller's list
    packed = vec[i32]([0] * len(tokens))
    position: i64 = 0
    first_digest: i64 = -1
    for item in tokens:
        if isinstance(item, int):
            value: int = item
            if value < 0 or value > MAX_TOKEN_ID:
                raise ValueError(f"{name}[{position}] is {shown(value)}: ids are 0 <= id < 2**31")
            token: i32 = value
            packed[position] = token
        elif isinstance(item, bytes):
            plain = to_plain_bytes(item)
            tokens[position] = plain
            if len(plain) == 0:
                raise ValueError(f"{name}[{position}] is {shown(item)}, an empty digest")
            if first_digest < 0:
                first_digest = position
        else:
            packed[position] = _token_of_other_type(item, int(position), name)
        position += 1
    if first_digest >= 0:
        while first_digest < position:
            digest = tokens[first_digest]
            if isinstance(digest, bytes):
                packed[first_digest] = digests.acquire(digest) if acquire else digests.find(digest)
            first_digest += 1
    return bytes(memoryview(packed))


def _token_of_other_type(item: object, position: int, name: str) -> i32:
    """Integers that are no ``int``, numpy's scalars above all."""
    if getattr(type(item), "__index__", None) is None:
        raise TypeError(f"{name}[{position}] is {shown(item)}, a {type_name(item)}: tokens are int or bytes")
    value = to_int(item, f"{name}[{position}]")
    if value < 0 or value > MAX_TOKEN_ID:
        raise ValueError(f"{name}[{position}] is {shown(value)}: ids are 0 <= id < 2**31")
    return value


def _pack_buffer(view: memoryview, name: str) -> bytes:
    if view.ndim != 1:
        raise ValueError(f"{name} must have one dimension, not {view.ndim}")
    code = view.format
    if view.itemsize < TOKEN_BYTES:
        way_out = "convert it to int32"
        if view.itemsize == 1 and code == "B":
            way_out += "; if it is a digest, which is one token, give its bytes in a list"
        raise TypeError(f"{name} must be int32 or int64, not items of {view.itemsize} bytes (format {code!r}); {way_out}")
    if code == "i" or (code == "l" and view.itemsize == TOKEN_BYTES):
        packed = view.tobytes()
        if len(packed) >= _NUMPY_FROM * TOKEN_BYTES:
            _validate_with_numpy(packed, name)
        else:
            _validate_packed(packed, name)
        return packed
    return _convert_with_numpy(view, name)


def _validate_packed(packed: bytes, name: str) -> None:
    if not has_digest(packed):
        return
    position: i64 = 0
    for token in vec[i32](memoryview(packed).cast("i")):
        if token < 0:
            raise ValueError(f"{name}[{position}] is {token}: ids are 0 <= id < 2**31")
        position += 1


def _validate_with_numpy(packed: bytes, name: str) -> None:
    import numpy as np

    array = np.frombuffer(packed, np.int32)
    if int(np.minimum.reduce(array)) < 0:
        position = int((array < 0).argmax())
        raise ValueError(f"{name}[{position}] is {array[position]}: ids are 0 <= id < 2**31")


def _convert_with_numpy(view: memoryview, name: str) -> bytes:
    import numpy as np

    try:
        array = np.asarray(view)
    except (ValueError, RuntimeError) as error:
        raise TypeError(f"{name} must be integers, not a buffer of format {view.format!r}") from error
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integers, not {array.dtype}")
    if len(array) == 0:
        return b""
    # Not `array.min()`, which is Python.
    if int(np.minimum.reduce(array)) < 0 or int(np.maximum.reduce(array)) > MAX_TOKEN_ID:
        position = int(((array < 0) | (array > MAX_TOKEN_ID)).argmax())
        raise ValueError(f"{name}[{position}] is {array[position]}: ids are 0 <= id < 2**31")
    return array.astype(np.int32).tobytes()
