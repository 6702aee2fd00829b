"""What a call says that needs a package which is not installed, or is broken: no engine needs all of them."""


def missing_package(caller: str, package: str, error: ImportError) -> ImportError:
    """The error to raise instead: which call needs which package, how to install it, and what the import said."""
    return ImportError(f"{caller} needs the package {package}: pip install {package} (the import said: {error})", name=error.name)
