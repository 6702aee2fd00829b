"""A stand-in for vLLM's `NixlConnector`, which vLLM loads by that name: a request says how much of its prompt another engine has computed.

It asks for tokens and gets blocks for them, as the real one; the list of loads goes to the toy workers.
"""

from typing import Any

from integrations.vllm_toy_workers import first_tag
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, SupportsHMA


class Loads(KVConnectorMetadata):
    """Of a step the loads that begin with it: the request, whether it waits, where in it, its blocks by KV cache group, and its content."""

    def __init__(self, loads: list[tuple[Any, ...]]) -> None:
        self.loads = loads


class NixlConnector(KVConnectorBase_V1, SupportsHMA):
    """The scheduler's half. Each request loads once."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        self.size = vllm_config.cache_config.block_size
        self.loads: list[tuple[Any, ...]] = []
        self.asked: set[str] = set()

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        count, waits = request.sampling_params.extra_args["peer"]
        if not waits:
            # A step computes the rest, which is at least a token.
            count = min(count, request.num_tokens - 1) // self.size * self.size
        count = min(count, request.num_prompt_tokens) - num_computed_tokens
        return (count, waits) if count > 0 and request.request_id not in self.asked else (0, False)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self.asked.add(request.request_id)
        if num_external_tokens > 0:
            count, waits = request.sampling_params.extra_args["peer"]
            end = min(count, request.num_prompt_tokens)
            if not waits:
                end = min(end, request.num_tokens - 1) // self.size * self.size
            begin = end - num_external_tokens
            ids = blocks.get_block_ids()
            new = [[block for block in group[begin // self.size :] if block > 0] for group in ids]
            assert not waits or blocks.get_unhashed_block_ids_all_groups() == new, (request.request_id, begin, ids)
            adapter = 0 if request.lora_request is None else request.lora_request.lora_int_id
            first = first_tag(request.cache_salt, adapter)
            self.loads.append((request.request_id, waits, begin, end, ids, first, list(request.prompt_token_ids)))

    def build_connector_meta(self, scheduler_output: Any) -> Loads:
        loads, self.loads = self.loads, []
        return Loads(loads)

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        return False, None

    # What vLLM's workers would call.

    def start_load_kv(self, forward_context: Any, **_keywords: Any) -> None: ...

    def wait_for_layer_load(self, layer_name: str) -> None: ...

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **_keywords: Any) -> None: ...

    def wait_for_save(self) -> None: ...
