"""The name of a buffer: a layer and a role. A role names one buffer of a layer, so no two buffers share an id."""

from typing import NamedTuple

from ..base.ids import DataRole, LayerId


class BufferId(NamedTuple):
    """The name of a buffer; see the module."""

    layer_id: LayerId
    role: DataRole
