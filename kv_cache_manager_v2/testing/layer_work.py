"""The work of one layer's kernel for a batch: the pages that it writes and reads, and their contents.

Plain values, made when the kernel is enqueued: page indices are copied, so that a later change of a page table does not
reach a kernel that was launched before it.
"""

from typing import Final, final

import numpy as np

from .kernel_buffer import KernelBuffer
from .kv_mismatch import KVMismatch
from .page_spans import Ints
from .span_image import SpanImage
from .step_rows import StepRows

_VALUE_BYTES: Final = 8


@final
class BufferWork:
    """One buffer's share. Page ``i`` is at ``base_address + i * stride_bytes``, ``0 <= i < num_pages``."""

    __slots__ = ("buffer", "base_address", "stride_bytes", "num_pages", "write_image", "write_pages", "check_image", "check_pages")

    def __init__(
        self,
        buffer: KernelBuffer,
        base_address: int,
        stride_bytes: int,
        num_pages: int,
        write_image: SpanImage,
        write_pages: Ints,
        check_image: SpanImage,
        check_pages: Ints,
    ) -> None:
        self.buffer: Final = buffer
        self.base_address: Final = base_address
        self.stride_bytes: Final = stride_bytes
        self.num_pages: Final = num_pages
        self.write_image: Final = write_image
        self.write_pages: Final = write_pages
        """Page index per span of the image; anything outside the range above is no page."""
        self.check_image: Final = check_image
        self.check_pages: Final = check_pages

    def is_page(self, pages: Ints) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        return (pages >= 0) & (pages < self.num_pages)


@final
class LayerWork:
    """All buffers of one configured layer. Attention writes its input, then reads; recurrent state is read first."""

    __slots__ = ("rows", "buffers", "is_state", "_model")

    def __init__(self, rows: StepRows, buffers: list[BufferWork], is_state: bool, model: list[list[KernelBuffer]]) -> None:
        self.rows: Final = rows
        self.buffers: Final = buffers
        self.is_state: Final = is_state
        self._model: Final[list[list[KernelBuffer]]] = model

    def mismatch(self, work: BufferWork, span: int, token_in_page: int, found: bytes | None) -> KVMismatch:
        """The error for a wrong token in a span of the buffer's check image."""
        buffer, image, rows = work.buffer, work.check_image, self.rows
        row = int(image.spans.row[span])
        if buffer.is_state:
            block, token = 0, int(rows.history[row]) - 1
        else:
            page = int(image.spans.page[span])
            block, token = page // buffer.pages_per_block, page * buffer.layout.tokens_per_page + token_in_page
        value = image.value_of(span, token_in_page)
        expected = buffer.layout.token_bytes(value ^ buffer.key, token_in_page)
        explanation = "" if found is None else self._explain(buffer, value, found)
        return KVMismatch(buffer.layer_id, buffer.role, rows.beams[row], block, token, expected, found, rows.sequence_ids[row], explanation)

    def _explain(self, buffer: KernelBuffer, value: int, found: bytes) -> str:
        """Whose value the bytes are, if it is one of this batch."""
        if len(found) < _VALUE_BYTES:
            return ""
        found_word = int.from_bytes(found[:_VALUE_BYTES], "little")
        for layer in self._model:
            for other in layer:
                if found_word ^ other.key == value:
                    return f"that is layer {other.layer_id} {other.role!r} of the same token"
        rows = self.rows
        place = rows.place_of(found_word ^ buffer.key)
        if place is None:
            return "that is no token of this batch in this buffer"
        row, token = place
        return f"that is token {token} of sequence {rows.sequence_ids[row]!r}, beam {rows.beams[row]}"
