"""The fake engine's layer kernels in host memory: numpy over raw addresses.

Bytes to be read are checked only after all of the layer's input is written, as in a model, where attention runs
after the projection that made the keys and values; a recurrent layer reads its state first and then replaces it.
"""

import ctypes
from collections.abc import Sequence
from typing import Any, Final, final

import numpy as np

from ..device.port import Device, HostKernel, MemoryAccess
from .kernel_launcher import BatchLaunch, KernelLauncher
from .layer_work import BufferWork, LayerWork
from .mismatch_log import MismatchLog
from .page_spans import Ints
from .span_image import SpanImage
from .token_layout import Words

_PIECE_BYTES: Final = 256 << 10
"""Pages are compared in pieces of this size, so that gathered bytes stay in the processor's cache."""


@final
class HostLayerKernel(HostKernel):
    """Writes and checks one layer's bytes; wrong ones are logged."""

    __slots__ = ("_work", "_log")

    def __init__(self, work: LayerWork, log: MismatchLog) -> None:
        self._work: Final[LayerWork] = work
        self._log: Final[MismatchLog] = log

    def accesses(self) -> Sequence[MemoryAccess]:
        """Merged. A recurrent layer reads and then writes; an attention layer writes the input of all its rows first, so that a row
        may read what another one has just written. The part of a row's own input that it reads counts as written only."""
        reads: list[Ints] = []
        writes: list[Ints] = []
        for work in self._work.buffers:
            image = work.check_image
            ends = image.spans.end
            if not self._work.is_state:
                first_token = image.spans.page * image.layout.tokens_per_page
                ends = np.minimum(ends, self._work.rows.history[image.spans.row] - first_token)
            reads.append(_byte_ranges(work, image, work.check_pages, ends))
            writes.append(_byte_ranges(work, work.write_image, work.write_pages, work.write_image.spans.end))
        if self._work.is_state:
            return _merged(reads, False) + _merged(writes, True)
        return _merged(writes, True) + _merged(reads, False)

    def run(self) -> None:
        work = self._work
        if work.is_state:
            for buffer_work in work.buffers:
                self._check(buffer_work)
        for buffer_work in work.buffers:
            _write(buffer_work)
        if not work.is_state:
            for buffer_work in work.buffers:
                self._check(buffer_work)

    def _check(self, work: BufferWork) -> None:
        image = work.check_image
        if len(image) == 0:
            return
        layout = work.buffer.layout
        is_page = work.is_page(work.check_pages)
        all_present = bool(is_page.all())
        if not all_present:
            self._report_no_page(work, np.nonzero(~is_page)[0])
        pool = _page_rows(work)
        key = layout.key_words(work.buffer.key)
        piece = max(_PIECE_BYTES // layout.page_bytes, 1)
        for beg in range(0, len(image), piece):
            end = min(beg + piece, len(image))
            pages, words, mask = work.check_pages[beg:end], image.words(beg, end), image.mask(beg, end)
            spans = np.arange(beg, end)
            if not all_present:
                present = is_page[beg:end]
                pages, words, spans = pages[present], words[present], spans[present]
                mask = None if mask is None else mask[present]
            differs = pool[pages]
            differs ^= words
            wrong = differs != key
            if mask is not None:
                wrong &= mask
            if wrong.any():
                self._report(work, spans, wrong, differs ^ words)

    def _report(self, work: BufferWork, spans: Ints, wrong: Any, found: Words) -> None:
        """Count the tokens with a wrong word, and log the first few. One row of words per span."""
        layout = work.buffer.layout
        rows, columns = np.nonzero(wrong)
        tokens = np.unique(rows * layout.tokens_per_page + layout.owner[columns])
        self._log.count_more(len(tokens))
        for token in tokens[: MismatchLog.MAX_KEPT].tolist():
            row, token_in_page = divmod(token, layout.tokens_per_page)
            beg, end = layout.first_byte(token_in_page), layout.first_byte(token_in_page + 1)
            found_bytes = found[row].tobytes()[beg:end]
            self._log.add(self._work.mismatch(work, int(spans[row]), token_in_page, found_bytes))

    def _report_no_page(self, work: BufferWork, missing: Ints) -> None:
        spans = work.check_image.spans
        self._log.count_more(int((spans.end[missing] - spans.beg[missing]).sum()))
        for span in missing[: MismatchLog.MAX_KEPT].tolist():
            self._log.add(self._work.mismatch(work, span, int(spans.beg[span]), None))


@final
class HostBatchLaunch(BatchLaunch):
    """A kernel per layer, through `Device.launch`."""

    __slots__ = ("_device", "_stream", "_layers", "_log")

    def __init__(self, device: Device, stream: int, layers: list[LayerWork], log: MismatchLog) -> None:
        self._device: Final[Device] = device
        self._stream: Final[int] = stream
        self._layers: Final[list[LayerWork]] = layers
        self._log: Final[MismatchLog] = log

    def launch_layer(self, layer_index: int) -> None:
        self._device.launch(self._stream, HostLayerKernel(self._layers[layer_index], self._log))

    def finish(self) -> None:
        pass


@final
class HostLauncher(KernelLauncher):
    """Launches on software devices. Keeps nothing: kernels carry their inputs, and write to the log as they run."""

    __slots__ = ("_device", "_log")

    def __init__(self, device: Device, log: MismatchLog) -> None:
        self._device: Final[Device] = device
        self._log: Final[MismatchLog] = log

    def prepare(self, stream: int, layers: list[LayerWork]) -> BatchLaunch:
        return HostBatchLaunch(self._device, stream, layers, self._log)

    def collect(self) -> None:
        pass

    def close(self) -> None:
        pass


def _write(work: BufferWork) -> None:
    image = work.write_image
    if len(image) == 0:
        return
    layout = work.buffer.layout
    is_page = work.is_page(work.write_pages)
    pool = _page_rows(work)
    words = image.words(0, len(image)) ^ layout.key_words(work.buffer.key)
    mask = image.mask(0, len(image))
    whole = is_page if mask is None else is_page & mask.all(axis=1)
    pool[work.write_pages[whole]] = words[whole]
    if mask is not None:
        span, word = np.nonzero(mask & (is_page & ~whole)[:, None])
        pool[work.write_pages[span], word] = words[span, word]


def _page_rows(work: BufferWork) -> Words:
    """Every page of the buffer's pool as a row of words, in place. Some rows are not mapped: access pages only."""
    layout = work.buffer.layout
    num_bytes = (work.num_pages - 1) * work.stride_bytes + layout.page_bytes if work.num_pages > 0 else 0
    memory: Any = (ctypes.c_ubyte * num_bytes).from_address(work.base_address)
    rows: Words = np.ndarray(
        (work.num_pages, layout.words_per_page),
        dtype=layout.word_type,
        buffer=memory,
        strides=(work.stride_bytes, layout.word_type.itemsize),
    )
    return rows


def _byte_ranges(work: BufferWork, image: SpanImage, pages: Ints, ends: Ints) -> Ints:
    """Rows of (first address, one past the last) of the spans up to ``ends``."""
    layout, spans = work.buffer.layout, image.spans
    addresses = work.base_address + pages * work.stride_bytes
    ranges = np.stack((addresses + layout.first_bytes(spans.beg), addresses + layout.first_bytes(ends)), axis=1)
    kept: Ints = ranges[work.is_page(pages) & (ranges[:, 1] > ranges[:, 0])]
    return kept


def _merged(ranges: list[Ints], is_write: bool) -> list[MemoryAccess]:
    """The ranges in order of address, adjacent or overlapping ones merged."""
    if len(ranges) == 0:
        return []
    joined = np.concatenate(ranges)
    if len(joined) == 0:
        return []
    joined = joined[np.argsort(joined[:, 0], kind="stable")]
    begs, ends = joined[:, 0], np.maximum.accumulate(joined[:, 1])
    is_first = np.concatenate((np.ones(1, dtype=bool), begs[1:] > ends[:-1]))
    firsts = np.nonzero(is_first)[0]
    lasts = np.concatenate((firsts[1:], np.array([len(begs)]))) - 1
    return [MemoryAccess(beg, end - beg, is_write) for beg, end in zip(begs[firsts].tolist(), ends[lasts].tolist(), strict=True)]
