"""The error of a call that needs a package which is missing or broken. Packages are optional: no engine needs all of them."""


def missing_package(caller: str, package: str, error: ImportError) -> ImportError:
    """The error to raise: which call needs which package, how to install it, and the import's own message."""
    return ImportError(f"{caller} needs the package {package}: pip install {package} (the import said: {error})", name=error.name)
