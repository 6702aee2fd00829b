"""An engine with a checkable model: for each layer, role and token it stores a value that names token and prefix.

Each step runs layer by layer, as a model does. An attention layer first writes the input's values of all its roles,
then checks every token in the window of the step's queries; a recurrent layer checks its state against the
whole history and replaces it by the state after the input. So a page that was freed too early, shared wrongly, copied late
or looked up under a wrong index shows as a wrong byte, in the layer that would have read it.

The engine is an ordinary user of the public API: it reads page tables when it launches, and knows nothing else of the
manager. Kernels are enqueued and the host does not wait; a wrong byte raises an error when it is known: from `execute` itself
on a device that runs eagerly, else from `synchronize` or a later `execute`.
"""

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, SupportsIndex, final


from ..base.checks import MAX_COUNT, to_bool, to_count, to_index_mode, to_instance, to_list
from ..base.errors import OutOfPagesError
from ..base.given import Given
from ..base.handle import Handle
from ..base.ids import PageIndexMode
from ..config.manager_config import KVCacheManagerConfig
from ..device.port import Device
from ..manager.kv_cache import KVCache
from ..reuse.token_forms import Tokens
from ..sequence.stream_handle import stream_handle
from .cuda_kernels import CudaLauncher
from .engine_memory import EngineMemory
from .host_kernels import HostLauncher
from .kernel_buffer import KernelBuffer, kernel_buffers
from .kernel_launcher import BatchLaunch, KernelLauncher
from .kv_mismatch import KVMismatch
from .launch_plan import LaunchPlan
from .mismatch_log import MismatchLog
from .paged_sequence import PagedSequence
from .step_batch import Step, StepBatch, to_token, validate_tokens


@final
class FakeEngine(Handle):
    """Runs batches of `Step`. See the module's docstring.

    ``raise_on_mismatch=False`` only counts wrong tokens in `mismatches`. ``index_mode``: how to address pages if the
    sequence leaves the choice; a batch with scratch slots always uses PER_LAYER.
    """

    __slots__ = (
        "raise_on_mismatch",
        "num_steps",
        "num_tokens",
        "num_checked_bytes",
        "_model",
        "_device",
        "_launcher",
        "_log",
        "_streams",
        "_index_mode",
        "_has_scratch",
        "memory",
    )

    def __init__(
        self,
        config: Given[KVCacheManagerConfig],
        device: Given[Device],
        *,
        raise_on_mismatch: Given[bool] = True,
        index_mode: Given[PageIndexMode] = PageIndexMode.SHARED,
    ) -> None:
        config = to_instance(config, KVCacheManagerConfig, "config")
        if not isinstance(device, Device):
            raise TypeError(f"device must be a Device, not {type(device).__name__}")
        self.raise_on_mismatch: bool = to_bool(raise_on_mismatch, "raise_on_mismatch")
        self.num_steps: int = 0
        """Steps launched so far."""
        self.num_tokens: int = 0
        """Input tokens of these steps, once per beam."""
        self.num_checked_bytes: int = 0
        """Bytes that these steps compare with the model's values."""
        self._model: Final[list[list[KernelBuffer]]] = kernel_buffers(config)
        self._device: Final[Device] = device
        self._log: Final[MismatchLog] = MismatchLog()
        launcher: KernelLauncher
        if device.is_software:
            launcher = HostLauncher(device, self._log)
        else:
            launcher = CudaLauncher(device, self._log)
        self._launcher: Final[KernelLauncher] = launcher
        self._streams: Final[dict[int, None]] = {}
        self._index_mode: Final[PageIndexMode] = to_index_mode(index_mode, "index_mode")
        self.memory: Final[EngineMemory | None] = None if device.has_memory else EngineMemory(device)
        """What the kernels read and write where the manager has no memory."""
        self._has_scratch: Final[bool] = config.enable_swa_scratch_reuse

    @property
    def mismatches(self) -> int:
        """Wrong (layer, role, beam, token) seen so far; a token that stays wrong counts each time it is read."""
        return self._log.count

    @property
    def first_mismatches(self) -> list[KVMismatch]:
        """The first few mismatches in full."""
        return list(self._log.first)

    def execute(self, steps: Sequence[Step], stream: object = None) -> None:
        """Enqueue the steps' kernels, each on ``stream`` (any form that `KVCache.resume` takes) or else on its sequence's own.

        `LogicError` for a sequence that is not active or has no room for the step; then nothing was launched.
        """
        listed = [to_instance(step, Step, "each of steps") for step in to_list(steps, "steps")]
        self._launcher.collect()
        self._raise_pending()
        self._run(self._batches(listed, stream), [True] * len(self._model))

    def prefill(self, kv_cache: Given[KVCache], prompt: Tokens, chunk_tokens: SupportsIndex | None = None) -> int:
        """Compute and commit what the sequence lacks of ``prompt``; returns how many tokens were computed.

        A chunk has ``chunk_tokens`` tokens at most, and ends where `KVCache.next_snapshot_position` says, so that equal prompts find
        their recurrent state. `ValueError` if all of the prompt was reused: the next token comes from the last one's
        output, so create the sequence with all but the last token of the prompt. `OutOfPagesError` if there is no room for a chunk.
        """
        kv_cache = to_instance(kv_cache, KVCache, "kv_cache")
        validate_tokens(prompt, "prompt")
        given: Any = prompt
        items: list[Any] = list(given)
        tokens = [to_token(item, "a token of the prompt") for item in items]
        layers = {int(layer) for group in kv_cache.manager.layer_grouping for layer in group}
        if layers != {int(buffers[0].layer_id) for buffers in self._model if len(buffers) > 0}:
            raise ValueError(f"kv_cache {kv_cache.id} has the layers {sorted(layers)}; the engine was made for others")
        most = MAX_COUNT if chunk_tokens is None else int(to_count(chunk_tokens, "chunk_tokens"))
        if most == 0:
            raise ValueError("chunk_tokens is 0; a chunk has at least 1")
        first = begin = int(kv_cache.num_committed_tokens)
        if begin >= len(tokens):
            raise ValueError(
                f"sequence {kv_cache.id} has {begin} committed tokens, the prompt {len(tokens)}: there is nothing left to compute. Give "
                f"create_kv_cache() all but the last token of the prompt"
            )
        while begin < len(tokens):
            stop = kv_cache.next_snapshot_position
            end = min(len(tokens), begin + most, len(tokens) if stop is None else stop)
            if not kv_cache.resize(end):
                raise OutOfPagesError(f"sequence {kv_cache.id}: there is no room for {end} tokens of the prompt")
            self.execute([Step(kv_cache, tokens[begin:end], tokens[:begin])])
            kv_cache.commit(tokens[begin:end])
            begin = end
        return begin - first

    def replay_states(self, kv_cache: PagedSequence, tokens: Sequence[Any], state_tokens: SupportsIndex, stream: object = None) -> None:
        """Advance a recurrent state that is behind to ``tokens``: only the recurrent layers run, nothing else is written.

        ``state_tokens``: the number of tokens that the state covers, from `KVCache.match_info`.
        """
        validate_tokens(tokens, "tokens")
        begin = int(to_count(state_tokens, "state_tokens"))
        if begin > len(tokens):
            raise ValueError(f"state_tokens is {begin}; there are {len(tokens)} tokens")
        self._launcher.collect()
        self._raise_pending()
        step = Step(kv_cache, tokens[begin:], tokens[:begin])
        is_state = [len(buffers) > 0 and buffers[0].is_state for buffers in self._model]
        self._run(self._batches([step], stream), is_state)

    def _run(self, batches: list[StepBatch], takes_part: list[bool]) -> None:
        launches = self._prepare(batches, takes_part)
        for layer_index in range(sum(takes_part)):
            for launch in launches:
                launch.launch_layer(layer_index)
        for launch in launches:
            launch.finish()
        self._launcher.collect()
        self._raise_pending()

    def synchronize(self) -> None:
        """Wait for everything launched so far, and raise the first wrong byte that was not raised yet."""
        for stream in self._streams:
            self._device.synchronize_stream(stream)
        self._streams.clear()
        self._launcher.collect()
        self._raise_pending()

    def close(self) -> None:
        """`synchronize`, and free the engine's memory on the device. Required on a GPU; idempotent."""
        try:
            self.synchronize()
        finally:
            self._launcher.close()
            if self.memory is not None:
                self.memory.close()

    def __enter__(self) -> "FakeEngine":
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        if exc_type is None:
            self.close()
        else:
            # Raise the user's error, not a mismatch that followed from it.
            self._log.take_pending()
            self.raise_on_mismatch = False
            self.close()

    def _batches(self, steps: Sequence[Step], stream: object) -> list[StepBatch]:
        """The steps by stream and manager; all are validated before any is launched."""
        batches: dict[tuple[int, int], StepBatch] = {}
        given = None if stream is None else stream_handle(stream, "stream")
        for step in steps:
            kv_cache = step.kv_cache
            stream_id = int(kv_cache.cuda_stream) if given is None else given
            manager = kv_cache.manager
            batch = batches.get((stream_id, id(manager)))
            if batch is None:
                batch = StepBatch(stream_id, manager)
                batches[(stream_id, id(manager))] = batch
            batch.add(step)
        return list(batches.values())

    def _prepare(self, batches: list[StepBatch], takes_part: list[bool]) -> list[BatchLaunch]:
        launches: list[BatchLaunch] = []
        for batch in batches:
            if self.memory is not None:
                self.memory.execute_copies(batch.manager, batch.stream, self._streams, self._model)
            plan = LaunchPlan(batch, self._model, self._index_mode, self._has_scratch, self.memory)
            layers = [plan.layer(layer_index) for layer_index in range(len(self._model)) if takes_part[layer_index]]
            self._streams[batch.stream] = None
            launches.append(self._launcher.prepare(batch.stream, layers))
            for layer in layers:
                for work in layer.buffers:
                    self.num_checked_bytes += work.check_image.num_bytes
            self.num_steps += batch.num_steps
            self.num_tokens += int((plan.rows.end - plan.rows.history).sum())
        return launches

    def _raise_pending(self) -> None:
        mismatch = self._log.take_pending()
        if mismatch is not None and self.raise_on_mismatch:
            raise mismatch
