"""Tables on a terminal."""

from collections.abc import Sequence


def print_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], as_markdown: bool = False) -> None:
    """The first column is text, the others are numbers."""
    if as_markdown:
        print(f"{title}\n")
        rule = ["---"] + ["---:"] * (len(headings) - 1)
        for cells in [headings, rule, *rows]:
            print(f"| {' | '.join(cells)} |")
        print()
        return
    widths = [max(len(row[position]) for row in [headings, *rows]) for position in range(len(headings))]
    print(title)
    for row in [headings, ["-" * width for width in widths], *rows]:
        first, *others = (cell for cell in row)
        print(
            "  ".join(
                [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))]
            )
        )
    print()


def shown(value: float | None) -> str:
    """Three digits that matter."""
    if value is None:
        return "-"
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"
