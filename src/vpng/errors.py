"""The one exception that bad input raises."""


class InputError(ValueError):
    """An argument is not what was asked for.

    The message names the argument, says what was expected and what came.
    """


def expected(name: str, wanted: str, got: object) -> InputError:
    """The error "`name`: expected `wanted`, got `got`."."""
    return InputError(f"{name}: expected {wanted}, got {got}.")
