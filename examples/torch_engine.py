"""An engine of one page: continuous batching, chunked prefill, prefix reuse and preemption, with real attention in torch.

Every request's answer is compared with a computation that has no cache. Needs torch; docs/engine-tutorial.md explains it.
"""

try:
    import torch
except ImportError:
    raise SystemExit("this example needs torch: pip install 'torch>=2.6'") from None

from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    BufferConfig,
    GpuCacheTierConfig,
    HostCacheTierConfig,
    HostDevice,
    KVCache,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerId,
)
from kv_cache_manager_v2.integrations.torch import layer_view

LAYERS, HEADS, HEAD_DIM, VOCABULARY = 3, 2, 16, 101
WIDTH = HEADS * HEAD_DIM
T = 8  # tokens per block
CHUNK = 24  # tokens of prefill in one step


class Model:
    """A decoder with random weights. It asks for earlier keys and values; who keeps them is not its affair."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.embedding = torch.randn(VOCABULARY, WIDTH, dtype=torch.float64)
        self.weights = torch.randn(LAYERS, 4, WIDTH, WIDTH, dtype=torch.float64) / WIDTH**0.5

    def run(self, tokens: list[int], begin: int, cache: "PagedKeys | WholeKeys") -> int:
        """The next token after ``tokens``, computing those from ``begin`` on."""
        hidden = self.embedding[tokens[begin:]] + torch.arange(begin, len(tokens))[:, None] / 100
        for layer, (to_query, to_key, to_value, to_output) in enumerate(self.weights):
            query, key, value = ((hidden @ weight).view(-1, HEADS, HEAD_DIM) for weight in (to_query, to_key, to_value))
            keys, values = cache.extend(layer, begin, key, value)
            scores = torch.einsum("qhd,khd->hqk", query, keys) / HEAD_DIM**0.5
            visible = torch.arange(len(tokens))[None, :] <= torch.arange(begin, len(tokens))[:, None]
            read = torch.einsum("hqk,khd->qhd", scores.masked_fill(~visible, -torch.inf).softmax(-1), values)
            hidden = hidden + read.reshape(-1, WIDTH) @ to_output
        return int((hidden[-1] @ self.embedding.T).argmax())


class WholeKeys:
    """Nothing is kept: the reference."""

    def extend(self, _layer: int, _begin: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return key, value


class Pool:
    """The manager, and its pools as tensors."""

    def __init__(self, num_blocks: int) -> None:
        size = WIDTH * T * 8
        layers = [AttentionLayerConfig(LayerId(i), [BufferConfig("key", size), BufferConfig("value", size)]) for i in range(LAYERS)]
        gpu, host = GpuCacheTierConfig(num_blocks * 2 * LAYERS * size), HostCacheTierConfig(64 << 20)
        self.device = HostDevice()
        self.manager = KVCacheManager(KVCacheManagerConfig(T, [gpu, host], layers), device=self.device)
        shape = (T, HEADS, HEAD_DIM)
        self.views = {
            (layer, role): layer_view(self.manager, LayerId(layer), role, torch.float64, shape)
            for layer in range(LAYERS)
            for role in ("key", "value")
        }

    def close(self) -> None:
        self.views.clear()  # the memory stays as long as a tensor of it is used
        self.manager.shutdown()
        self.device.close()


class PagedKeys:
    """One sequence's keys and values, in the pages that the manager gave it."""

    def __init__(self, pool: Pool, sequence: KVCache) -> None:
        self.pool = pool
        self.sequence = sequence

    def extend(self, layer: int, begin: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        end = begin + len(key)
        read = []
        for role, new in (("key", key), ("value", value)):
            view = self.pool.views[layer, role]
            pages = torch.from_numpy(view.rows(self.sequence)).long()
            rows = (pages[:, None] * T + torch.arange(T)).flatten()[:end]  # where each token lies
            tokens = view.tensor.flatten(0, 1)
            tokens[rows[begin:]] = new
            read.append(tokens[rows])
        return read[0], read[1]


class Request:
    def __init__(self, pool: Pool, prompt: list[int], num_new: int) -> None:
        self.tokens = list(prompt)
        self.num_prompt, self.num_wanted = len(prompt), len(prompt) + num_new
        # The last token is left off: its logits are needed, so it has to be computed.
        self.sequence = pool.manager.create_kv_cache(input_tokens=prompt[:-1])
        self.num_reused = self.sequence.num_committed_tokens


class Engine:
    def __init__(self, model: Model, pool: Pool) -> None:
        self.model = model
        self.pool = pool
        self.requests: list[Request] = []  # the oldest first: it is never preempted
        self.num_preempted = 0

    def make_ready(self, request: Request, capacity: int) -> bool:
        """Its pages on level 0, and room for a step; younger requests are suspended for it."""
        while True:
            sequence = request.sequence
            if (sequence.is_active or sequence.resume()) and sequence.resize(capacity):
                return True
            younger = [other for other in self.requests if other.sequence.is_active and other is not request]
            if not younger or self.requests.index(younger[-1]) < self.requests.index(request):
                return False
            younger[-1].sequence.suspend()
            self.num_preempted += 1

    def step(self) -> None:
        for request in list(self.requests):
            begin = request.sequence.num_committed_tokens
            end = min(len(request.tokens), begin + CHUNK)
            if not self.make_ready(request, end):
                continue
            token = self.model.run(request.tokens[:end], begin, PagedKeys(self.pool, request.sequence))
            request.sequence.commit(request.tokens[begin:end])
            if end == len(request.tokens):
                request.tokens.append(token)
            if len(request.tokens) == request.num_wanted:
                request.sequence.close()
                self.requests.remove(request)


def main() -> None:
    model, pool = Model(), Pool(num_blocks=24)
    engine = Engine(model, pool)
    generator = torch.Generator().manual_seed(1)
    system_prompt = torch.randint(VOCABULARY, (50,), generator=generator).tolist()
    done: list[Request] = []
    for _wave in range(2):
        wave = []
        for length in (5, 17, 30, 41):
            question = torch.randint(VOCABULARY, (length,), generator=generator).tolist()
            wave.append(Request(pool, system_prompt + question, num_new=12))
        engine.requests.extend(wave)
        while engine.requests:
            engine.step()
        done += wave
    wrong = 0
    for request in done:
        expected = request.tokens[: request.num_prompt]
        while len(expected) < request.num_wanted:
            expected.append(model.run(expected, 0, WholeKeys()))
        wrong += expected != request.tokens
    reused = sum(request.num_reused for request in done)
    print(f"{len(done)} requests, {reused} tokens reused, {engine.num_preempted} preemptions, {wrong} wrong answers")
    pool.close()


if __name__ == "__main__":
    main()
