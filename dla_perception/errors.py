"""The base of every error a user can cause and mend."""


class DlaPerceptionError(Exception):
    """Bad input or an unmet need, told in one line.

    The message names the input, what is wrong, what was expected and how to mend it. The
    command line prints it and exits with 2; a node logs it and reports it in its diagnostics.
    Anything else that is raised is a fault of this package.
    """


class MissingPackageError(DlaPerceptionError):
    """An optional package that this task needs is not installed."""

    def __init__(self, package: str, purpose: str, install: str) -> None:
        super().__init__(f"{purpose} needs the package {package}: install it with '{install}'")
        self.package = package
