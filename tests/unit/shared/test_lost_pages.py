"""Whatever a load finds, it ends as a shorter prefix or none, byte for byte: pages that are lost under way, and lengths without a page.

A window of one token needs no page of the blocks before it, and a load may be of windows alone: its pages begin behind its first block.
"""

from functools import partial

import pytest
from shared_models import Rank, shared_config
from small_models import config_of

from kv_cache_manager_v2 import KVCacheManagerConfig
from kv_cache_manager_v2.shared import MemoryStore, RemoteRequest
from kv_cache_manager_v2.shared.store_tasks import LoadTask, StagedPage

TEXT = list(range(100, 133))  # 8 whole blocks of 4 tokens, and the token that the model must compute
MODELS = {
    "one token": shared_config((1,)),
    "one token, sinks": config_of((1,), sinks=(1,), max_util_for_resume=1.0),
    "one token, and two blocks": shared_config((1, 8)),
    "two blocks": shared_config((8,)),
    "two windows": shared_config((8, 20)),
    "window, sinks": config_of((8,), sinks=(5,), max_util_for_resume=1.0),
    "all": shared_config((None, 8)),
}


@pytest.mark.parametrize("num_local", [0, 2])
@pytest.mark.parametrize("model", MODELS)
def test_each_page_may_be_lost_between_the_look_up_and_the_load(model: str, num_local: int) -> None:
    config = MODELS[model]
    num_keys = len(fill(config).keys())
    for lost in range(num_keys + 1):  # the last one: none
        store = fill(config)
        with Rank(store, config, write_policy="off") as rank:
            if num_local > 0:
                rank.compute(rank.begin([*TEXT[: 4 * num_local], 7]), [*TEXT[: 4 * num_local], 7])
            request = rank.begin(TEXT)
            other = rank.begin([1, *TEXT])
            rank.wait(partial(is_known, request))
            for key in store.keys()[lost : lost + 1]:
                store.discard(key)
            assert request.kv_cache.resume()
            if request.fetch():
                rank.wait(partial(has_arrived, request))
                assert request.take(), rank.manager.last_refusal
            if lost == num_keys:
                assert request.kv_cache.num_committed_tokens == 32
            rank.compute(request, TEXT)  # each byte that is read is checked
            rank.load(other)
            rank.compute(other, [1, *TEXT])


def test_an_answer_that_cannot_be_evaluated_costs_its_own_request_only() -> None:
    config = shared_config()
    with Rank(fill(config), config) as rank:
        bad, good = [rank.begin(TEXT) for _request in range(2)]
        rank.wait(lambda: bad.remote_tokens is not None and good.remote_tokens is not None)
        assert bad.kv_cache.resume() and good.kv_cache.resume() and bad.fetch() and good.fetch()
        operation = rank.level._operations[(bad.number, 1)]
        task, page = operation.tasks[0], operation.pages[0]
        assert isinstance(task, LoadTask)
        task.whole.append(StagedPage(99, page.ordinal, page.name, page.slot, page.endpoint))  # there is no such layer group
        rank.wait(lambda: bad.arrived_tokens is not None and good.arrived_tokens is not None)
        assert (bad.arrived_tokens, good.arrived_tokens) == (0, 32)
        assert good.take() and bad.take()
        rank.compute(good, TEXT)
        rank.compute(bad, TEXT)


def fill(config: KVCacheManagerConfig) -> MemoryStore:
    """A store that has all of the prompt's pages which its prefixes need."""
    store = MemoryStore()
    with Rank(store, config) as writer:
        for end in range(5, len(TEXT) + 1, 4):
            writer.run(TEXT[:end])
        writer.drain()
    return store


def is_known(request: RemoteRequest) -> bool:
    return request.remote_tokens is not None


def has_arrived(request: RemoteRequest) -> bool:
    return request.arrived_tokens is not None
