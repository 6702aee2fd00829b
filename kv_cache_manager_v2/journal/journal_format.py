"""Format of a journal file, for the writer and the reader.

    file     = magic, version (1 byte), configuration, codec, restored*, record*
    configuration, codec = length (varint), JSON; of no codec the length is 0
    restored = RESTORED, length (varint), records of an index as `durable.record_format` has them, without checksums: what the manager
               found on its durable level, if it has one; the last one ends with END
    record   = operation (1 byte), its fields

Fields are unsigned varints (7 bits a byte, least significant first) unless said. The records of a decode step, `GROW` and
`COMMIT_ONE`, are 8 bytes long, with fields of fixed length, little-endian, so that writing one is a store. A sequence is
named by its serial: the first `CREATE` or `FORK` of a journal makes 0, the next 1, and so on. Priorities are a count and
what the user's callback returned during the call. Tokens are a count and a form: PACKED is 4 bytes little-endian each; MIXED
is a varint per token, id + 1, or 0 and a digest as length and bytes. Lengths are those that the call asked for, or the
present ones where it said to keep them.

    operation   fields                                           written when the call
    CREATE      priorities, scope, has tokens (0 / 1),           returned
                [tokens], has priority callback (0 / 1),
                expected prompt length + 1 or 0,
                count of snapshot positions, each of them,
                retention as JSON text, or an empty text,
                counted (0 / 1), exact (0 / 1)
    RESUME      serial, priorities, stream, result (0 / 1)       returned True or False
    REWIND      serial, tokens, tokens that were kept            returned
    SUSPEND     serial                                           returned
    CLOSE       serial, hint                                     returned, or a forgotten handle was closed
    RESIZE      serial, priorities, capacity, history, result    returned True or False
    GROW        serial (3 bytes), capacity (4): a RESIZE that    returned True
                asked for no priorities and left the history
    MOVE        serial (7 bytes), capacity (4), history (4):     returned True
                a RESIZE that asked for no priorities
    COMMIT_ONE  serial (3 bytes), token (4)                      returned
    COMMIT      serial, tokens                                   returned
    COMMIT_GIVEN  serial, count, tokens                          returned: so many of the tokens that CREATE was given,
                                                                 from the committed count on, and then these
    COMMIT_LAST serial, tokens                                   returned; with is_end, of one beam
    STOP        serial, hint                                     returned
    STREAM      serial, stream                                   returned
    SCRATCH     serial, enabled (0 / 1)                          returned
    FORK        serial of the parent, result (0 / 1); the child  returned, or was refused for want of a slot
                gets the next serial
    PLAN_DROP   serial; plans are numbered from 0 on             returned a plan
    DROP        number of the plan                               returned
    CANCEL_DROP number of the plan                               returned, or a forgotten plan was cancelled
    COMMIT_TREE serial, heads, count, positions, tokens          returned
    RESERVE     serial, first block, end; leases are numbered    returned
    SETTLE      number of the lease, stream + 1 or 0             returned
    BEAM_WIDTH  serial, width, result (0 / 1)                    changed the width, or was refused for want of a slot
    REORDER     serial, count, parents                           returned, of more than one beam
    COMMIT_BEAMS  serial, heads, count, beams, tokens            returned
    PUBLISH_PLANNED  serial, tokens, offered tokens              returned
    PROBE       scope, tokens, with planned ones (0 / 1)         returned
    CLEAR                                                        returned
    INVALIDATE  scope                                            returned
    PREFETCH    serial, level, result (0 / 1)                    returned True or False
    ADVANCE     microseconds                                     returned
    RESIZE_LEVEL level, quota, best efforts (0 / 1),             returned True or False
                new quota, result
    ADJUST      result (0 / 1)                                   returned True or False
    HINT        kind (retain, release, demote, prefetch), scope, returned
                tokens, priority or level, duration in
                microseconds + 2, 1 for ever, 0 as
                the policy expects, accepted tokens
    KEEP        count, names of 16 bytes each                    returned
    TAKE        number of the last list, number of copies        returned
    RESIDENCY   serial, layer group, window + 1 or 0,        returned
                sink tokens
    REQUIRE     serial, layer group, count, ordinals,        returned True or False
                result (0 / 1)
    PACKED_WITH_LOSS  serial, first block                        a shared level has filled the blocks from there on
    DIGEST      8 bytes                                          every `DIGEST_EVERY` records, and at the end

A hint says whether the sequence is expected to continue: 0 nothing is said, 1 it is, 2 it is not.

A scope is two parts, each a kind byte (NOTHING, NUMBER, TEXT) and its value: a number in zigzag, a text as length and UTF-8.
Calls that raise change nothing and are not recorded. A batch call is recorded as its single ones, and so is the closing of a
forgotten sequence.
"""

from typing import Final

MAGIC: Final = b"KVCM"
VERSION: Final = 46

CREATE: Final = 1
RESUME: Final = 2
SUSPEND: Final = 3
CLOSE: Final = 4
RESIZE: Final = 5
COMMIT_ONE: Final = 6
COMMIT: Final = 7
STOP: Final = 8
STREAM: Final = 9
SCRATCH: Final = 10
PROBE: Final = 11
CLEAR: Final = 12
DIGEST: Final = 13
FORK: Final = 20
PLAN_DROP: Final = 21
DROP: Final = 22
CANCEL_DROP: Final = 23
PREFETCH: Final = 24
COMMIT_TREE: Final = 25
RESERVE: Final = 26
SETTLE: Final = 27
BEAM_WIDTH: Final = 28
REORDER: Final = 29
COMMIT_BEAMS: Final = 30
ADVANCE: Final = 31
RESIZE_LEVEL: Final = 32
ADJUST: Final = 33
HINT: Final = 34
GROW: Final = 35
INVALIDATE: Final = 36
MOVE: Final = 37
COMMIT_GIVEN: Final = 38
COMMIT_LAST: Final = 39
REWIND: Final = 40
RESTORED: Final = 41
KEEP: Final = 42
PUBLISH_PLANNED: Final = 43
TAKE: Final = 44
RESIDENCY: Final = 45
REQUIRE: Final = 46
PACKED_WITH_LOSS: Final = 47

RETAIN: Final = 0
RELEASE: Final = 1
DEMOTE: Final = 2
WARM: Final = 3
"""Kinds of hints; the last one is `KVCacheManager.prefetch`."""

PACKED: Final = 0
MIXED: Final = 1

NOTHING: Final = 0
NUMBER: Final = 1
TEXT: Final = 2

DIGEST_BYTES: Final = 8
NAME_BYTES: Final = 16
"""Bytes of the name of a restored prefix."""
DIGEST_EVERY: Final = 1024
"""A power of two."""

CALLS: Final[dict[int, tuple[str, str]]] = {
    CREATE: (".create", "psoaLNTbb"),
    RESUME: ("resume", "qpzr"),
    REWIND: ("rewind", "qnc"),
    SUSPEND: ("suspend", "q"),
    CLOSE: (".close", "qh"),
    RESIZE: ("resize", "qpnnr"),
    GROW: ("resize", "34y"),
    MOVE: ("resize", "744y"),
    COMMIT_ONE: ("commit", "3k"),
    COMMIT: ("commit", "qt"),
    COMMIT_GIVEN: (".commit_given", "qnt"),
    COMMIT_LAST: (".commit_last", "qt"),
    STOP: ("stop_committing", "qh"),
    STREAM: ("cuda_stream=", "qz"),
    SCRATCH: ("enable_swa_scratch_reuse=", "qb"),
    FORK: ("fork", "qr"),
    PLAN_DROP: ("plan_committed_block_drop", "q"),
    DROP: ("drop", "d"),
    CANCEL_DROP: ("cancel", "d"),
    COMMIT_TREE: (".commit_tree", "qnNt"),
    RESERVE: ("reserve_transfer", "qnn"),
    SETTLE: ("settle", "lZ"),
    BEAM_WIDTH: ("beam_width=", "qnr"),
    REORDER: ("reorder_beams", "qN"),
    COMMIT_BEAMS: (".commit_beams", "qnNt"),
    PUBLISH_PLANNED: ("publish_planned", "qtc"),
    PROBE: ("probe_reuse", "sob"),
    CLEAR: ("clear_reusable_blocks", ""),
    INVALIDATE: ("invalidate_reuse_scope", "s"),
    PREFETCH: ("prefetch", "qnr"),
    ADVANCE: ("advance_clock", "u"),
    RESIZE_LEVEL: (".resize_level", "nnbnb"),
    ADJUST: ("adjust", "r"),
    HINT: (".hint", "nsonnc"),
    KEEP: ("keep_restored", "K"),
    TAKE: (".take_copies", "nn"),
    RESIDENCY: ("set_residency_window", "qnLn"),
    REQUIRE: ("require_blocks", "qnNr"),
    PACKED_WITH_LOSS: (".mark_packed", "qn"),
}
"""The table of calls: by operation the call that makes it again, and the fields of its record, a letter each.

The call is one of the handle that the first field names (``q`` a sequence, ``3`` and ``7`` one in so many bytes, ``d`` a plan to drop,
``l`` a lease), else of the manager; with ``=`` a property to set; with a dot what a rerun does in its place, with all the fields. The
other fields are the arguments, but for ``p``, priorities, and a result at the end: ``r`` 0 or 1, ``c`` a count, ``y`` True without a byte.

``n`` a number, ``4`` one of 4 bytes, ``k`` a token of 4 bytes, ``b`` 0 or 1, ``L`` a number + 1 or 0, ``N`` numbers, ``K`` names, ``t``
tokens, ``o`` whether there are tokens and they, ``s`` a scope, ``h`` a hint, ``z`` a stream, ``Z`` a stream + 1 or 0, ``a`` whether
there is a priority callback, ``T`` terms of retention, ``u`` microseconds.
"""
