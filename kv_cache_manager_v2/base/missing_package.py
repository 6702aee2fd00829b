"""The error of a call that needs a package which is missing or broken. Packages are optional: no engine needs all of them."""


def missing_package(caller: str, package: str, error: ImportError, arguments: str = "") -> ImportError:
    """The error to raise: which call needs which package, how to install it, and the import's own message.

    ``arguments``: of ``pip install``, where they are more than the package.
    """
    return ImportError(
        f"{caller} needs the package {package}: pip install {arguments or package} (the import said: {error})", name=error.name
    )
