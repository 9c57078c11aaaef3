"""Arguments of a call that come as JSON text, as models' tool calls carry them.

The rule: the text gets the same limits as a body. One that isn't a JSON object is a mistake of the agent's, so it fails
the call, like wrong arguments; it doesn't refuse the request.
"""

from typing import Any

from server.base.errors import InvalidParamsError, TooLargeError
from server.base.settings import Settings
from server.jsonio.strict import loads
from server.rpc.limits import has_more_values, is_deeper


def read_arguments(text: str, settings: Settings) -> tuple[dict[str, Any], str | None]:
    """Get the arguments, or `{"$text": text}` and what is wrong with the text.

    A text without any character is no argument at all: some models send that.

    Raises:
        TooLargeError: It has more values than allowed.
        InvalidParamsError: It is nested more deeply than allowed.
    """
    body = text.encode()
    if has_more_values(body, settings.max_json_values):
        raise TooLargeError(f"kwargs has more than {settings.max_json_values} values: send less.")
    try:
        arguments = loads(body) if text.strip() else {}
    except ValueError as error:
        return {"$text": text}, f"the arguments are not JSON: {error}"
    if not isinstance(arguments, dict):
        return {"$text": text}, 'the arguments are no JSON object, like {"name": "value"}'
    if is_deeper(body, arguments, settings.max_json_depth):
        raise InvalidParamsError(f"kwargs is nested more than {settings.max_json_depth} deep: send flatter JSON.")
    return arguments, None
