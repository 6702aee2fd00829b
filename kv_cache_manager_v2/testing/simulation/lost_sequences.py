"""Lost sequences: those that hold a page whose bytes a disk has lost. They report it, and are closed at any later time, or rewound.

Until then the lost pages exist and must not be matched.
"""

from random import Random
from typing import Final, final


from ...manager.kv_cache_manager import KVCacheManager
from ...reuse.reuse_scope import ReuseScope
from ..reference_model import ReferenceModel
from ..reference_pages import ModelDisagreement
from . import failures
from .simulated_sequence import SimulatedSequence

_SHARE_CLOSED_AT_ONCE: Final = 0.4
_SHARE_CLOSED_LATER: Final = 0.1
"""The share closed before each action."""
_SHARE_REWOUND: Final = 0.5
"""Of those that are left, before each action."""


@final
class LostSequences:
    __slots__ = ("_manager", "_model", "sequences")

    def __init__(self, manager: KVCacheManager, model: ReferenceModel) -> None:
        self._manager: Final = manager
        self._model: Final = model
        self.sequences: Final[list[SimulatedSequence]] = []

    def take_from(self, sequences: list[SimulatedSequence], random: Random) -> None:
        """After a failure: move sequences that lost pages out of ``sequences``."""
        lost = failures.list_lost(self._manager.describe())
        for sequence in [sequence for sequence in sequences if sequence.name in lost]:
            for group in list(sequence.buffers):
                # One more block, which must be refused for another reason, may not fit into the buffer.
                sequence.handle.set_base_page_index_buf(0, group, None)
                del sequence.buffers[group]
            failures.require_lost(sequence.handle, sequence.model.capacity)
            if sequence.model.is_active:
                sequence.handle.suspend()
                self._model.suspend(sequence.model)
            sequences.remove(sequence)
            self.sequences.append(sequence)
            if random.random() < _SHARE_CLOSED_AT_ONCE:
                self._close(sequence)

    def _rewind(self, sequence: SimulatedSequence) -> SimulatedSequence:
        """The sequence goes on with what is left of it, and computes the rest again."""
        first_bad_token = failures.require_lost(sequence.handle, sequence.model.capacity)
        self.sequences.remove(sequence)
        old = sequence.model
        size = self._model.tokens_per_block
        # Whether a partial last block is published when a lost sequence ends is left open.
        count = min(first_bad_token, len(old.path) * size)
        text = old.committed[:count]
        self._model.abandon(old)
        num_kept = sequence.handle.rewind(count)
        dump = self._manager.describe()
        if self._manager.init_config.write_policy == "through":
            # What is published as it ends is copied down, for which pages below may be evicted, its own that are out of window too.
            self._model.forget_evicted(dump)
        elif num_kept != count and not old.is_retired and not old.is_exact:
            raise ModelDisagreement(f"sequence {sequence.name} was to keep {count} tokens and keeps {num_kept}")
        model = self._model.create(sequence.name, old.scope, tuple(text), num_kept, dump, 0, True, old.is_exact)
        model.uses_scratch = old.uses_scratch
        self._model.make_room()
        to_compute = sequence.text[num_kept:] + sequence.to_compute
        rewound = SimulatedSequence(sequence.name, sequence.handle, model, sequence.text[:num_kept], to_compute, sequence.max_committed)
        rewound.prompt_length = sequence.prompt_length
        rewound.told_indices = sequence.told_indices
        return rewound

    def end_some(self, sequences: list[SimulatedSequence], random: Random) -> None:
        """Close some, and put others back among ``sequences``, rewound."""
        for sequence in list(self.sequences):
            if random.random() < _SHARE_CLOSED_LATER:
                self._close(sequence)
            elif self._model.state.group < 0 and random.random() < _SHARE_REWOUND:
                sequences.append(self._rewind(sequence))
                # Of several, the others' pages may have been dropped with these.
                return

    def close_all(self) -> None:
        for sequence in list(self.sequences):
            self._close(sequence)

    def _close(self, sequence: SimulatedSequence) -> None:
        self.sequences.remove(sequence)
        self._model.abandon(sequence.model)
        sequence.handle.close()
        # Lost pages without holds are dropped at the next look-up of a prefix, with the pages below them.
        self._model.make_room()
        for scope in self._manager.describe()["tree"][:1]:
            self._manager.probe_reuse(ReuseScope(scope["lora_id"], scope["salt"]), [0])
