"""What all shipped checks raise."""


class CheckFailed(AssertionError):
    """A plug-in does not do what its interface promises."""


def expect(condition: object, case: str, text: str) -> None:
    """Raise CheckFailed, naming the case, unless the condition holds."""
    if not condition:
        raise CheckFailed(f"{case}: {text}")
