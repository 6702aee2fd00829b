"""The life cycles of a model's layers, and so its layer groups. Ids are dense, in order of first appearance.

A layer with both attention and recurrent state has two life cycles and belongs to two layer groups.
"""

from collections.abc import Iterator
from typing import Final, final


from ..base.ids import LayerId, LifeCycleId
from ..base.value import Value
from ..config.layer_config import AttentionLayerConfig, LayerConfig, SsmLayerConfig
from ..config.manager_config import KVCacheManagerConfig
from .life_cycle import AttnLifeCycle, LifeCycle, SsmLifeCycle


@final
class LifeCycleRegistry(Value):
    """``registry[life_cycle_id]`` is a life cycle; iteration is in the order of the ids. Never changes."""

    __slots__ = ("_config", "_life_cycles", "_layer_ids", "_layer_grouping", "_attention_ids", "_state_ids", "slot_bytes")

    def __init__(self, config: KVCacheManagerConfig) -> None:
        life_cycles: list[LifeCycle] = []
        groups: list[list[LayerId]] = []
        ids: dict[LifeCycle, LifeCycleId] = {}
        attention_ids: dict[LayerId, LifeCycleId] = {}
        state_ids: dict[LayerId, LifeCycleId] = {}
        division = config.divide_into_equal_slots()
        for layer in config.layers:
            life_cycle = SsmLifeCycle() if isinstance(layer, SsmLayerConfig) else AttnLifeCycle.make(
                layer.sliding_window_size, layer.num_sink_tokens, config.tokens_per_block,
                layer.part if division is None else division.part_of[layer.layer_id],
            )  # fmt: skip
            life_cycle_id = ids.get(life_cycle)
            if life_cycle_id is None:
                life_cycle_id = LifeCycleId(len(life_cycles))
                ids[life_cycle] = life_cycle_id
                life_cycles.append(life_cycle)
                groups.append([])
            groups[life_cycle_id].append(layer.layer_id)
            (attention_ids if life_cycle.has_page_per_block else state_ids)[layer.layer_id] = life_cycle_id
        self._config: Final = config
        self._life_cycles: Final[list[LifeCycle]] = life_cycles
        self._layer_ids: Final[tuple[LayerId, ...]] = tuple(dict.fromkeys([layer.layer_id for layer in config.layers]))
        self._layer_grouping: Final[tuple[tuple[LayerId, ...], ...]] = tuple([tuple(group) for group in groups])
        self._attention_ids: Final[dict[LayerId, LifeCycleId]] = attention_ids
        self._state_ids: Final[dict[LayerId, LifeCycleId]] = state_ids
        """All the same."""
        self.slot_bytes: Final[tuple[int, ...] | None] = None if division is None else division.slot_bytes
        """By pool the bytes that slots of all attention groups are filled up to; None: each group has slots of its own bytes."""

    def _arguments(self) -> tuple[object, ...]:
        return (self._config,)

    def __len__(self) -> int:
        return len(self._life_cycles)

    def __getitem__(self, life_cycle_id: LifeCycleId) -> LifeCycle:
        if not 0 <= life_cycle_id < len(self._life_cycles):
            raise IndexError(f"there is no layer group {life_cycle_id}; there are {len(self._life_cycles)}")
        return self._life_cycles[life_cycle_id]

    def __iter__(self) -> Iterator[LifeCycle]:
        return iter(self._life_cycles)

    @property
    def layer_ids(self) -> tuple[LayerId, ...]:
        """Every layer once, in the order of the configuration."""
        return self._layer_ids

    @property
    def layer_grouping(self) -> tuple[tuple[LayerId, ...], ...]:
        """For each life cycle its layers, in the order of the configuration."""
        return self._layer_grouping

    @property
    def state_life_cycle_id(self) -> LifeCycleId | None:
        """The life cycle of all recurrent state, or None if no layer has any."""
        return next(iter(self._state_ids.values()), None)

    def get_layer_group_id(self, layer_id: LayerId) -> LifeCycleId:
        """The layer's group: that of its attention, or of its state if it has no attention."""
        attention_id = self._attention_ids.get(layer_id)
        return self.get_state_layer_group_id(layer_id) if attention_id is None else attention_id

    def get_state_layer_group_id(self, layer_id: LayerId) -> LifeCycleId:
        """The group of the layer's recurrent state, also where the layer has attention. `ValueError` if it has no state."""
        state_id = self._state_ids.get(layer_id)
        if state_id is not None:
            return state_id
        if layer_id in self._attention_ids:
            raise ValueError(f"layer_id is {layer_id}, which has no recurrent state; layers with one are {sorted(self._state_ids)}")
        raise ValueError(f"layer_id is {layer_id}; the configured layers are {list(self._layer_ids)}")

    def life_cycle_of(self, layer_id: LayerId) -> LifeCycle:
        """The life cycle of `get_layer_group_id`."""
        return self._life_cycles[self.get_layer_group_id(layer_id)]

    def life_cycle_ids_of(self, layer_id: LayerId) -> tuple[LifeCycleId, ...]:
        """All life cycles of a layer, that of `get_layer_group_id` first."""
        first = self.get_layer_group_id(layer_id)
        state_id = self._state_ids.get(layer_id, first)
        return (first,) if state_id == first else (first, state_id)

    def life_cycle_id_of_config(self, layer: LayerConfig) -> LifeCycleId:
        """The life cycle of one entry of the configuration, which is either attention or state."""
        if isinstance(layer, AttentionLayerConfig):
            return self.get_layer_group_id(layer.layer_id)
        return self.life_cycle_ids_of(layer.layer_id)[-1]
