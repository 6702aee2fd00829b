"""Rows of text as a table for terminals: columns of equal width, numbers to the right."""


def format_table(header: list[str], lines: list[list[str]]) -> str:
    widths = [max([len(line[column]) for line in [header, *lines]]) for column in range(len(header))]
    rows = [_format_line(header, widths), "  ".join(["-" * width for width in widths])]
    rows.extend([_format_line(line, widths) for line in lines])
    return "\n".join(rows) + "\n"


def _format_line(line: list[str], widths: list[int]) -> str:
    return "  ".join([cell.rjust(widths[column]) for column, cell in enumerate(line)]).rstrip()
