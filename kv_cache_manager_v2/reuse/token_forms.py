"""`Tokens`: the forms in which a caller may give tokens. Apart from `token_packing`, which packs them, because this module loads numpy."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ..base.ids import TokenIdExt

Tokens: TypeAlias = Sequence[TokenIdExt] | npt.NDArray[np.int32] | npt.NDArray[np.int64] | memoryview | Sequence[int]
