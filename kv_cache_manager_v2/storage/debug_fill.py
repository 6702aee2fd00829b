"""Known bytes in place of what a page held before: debugging aid for engines and kernels, off unless asked for."""

from enum import IntEnum


class DebugFill(IntEnum):
    """The byte that freed pages, and pages as they are handed out, are filled with.

    NAN: every common type reads it as NaN, so a token that was never written, or a page that was freed, spreads into
    the results at once. FINITE: about 1 or less in every common type, for kernels that multiply masked rows by zero,
    where NaN would spread as well (fp16 1.06, bf16 and fp32 0.0115, fp8 e4m3 1.5, e5m2 1.0).
    """

    NAN = 0xFF
    FINITE = 0x3C
