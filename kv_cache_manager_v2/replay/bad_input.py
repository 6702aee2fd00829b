"""The error of an input file that is not what it should be: one line that says so, and exit code 3."""


class BadInputError(Exception):
    """What the input is, what was expected, and the nearest thing that works."""
