"""A phone whose mobile data doesn't work abroad. Its user and an agent repair it.

The tests check that each call and each message is recorded once.
"""

from typing import Annotated, Any

from toolpack_server import Depends, Rollout, TaskEnvironment, Toolpack

GREETING, ASKS, THEN = "Hello, how can I help?", "Please toggle roaming, and look.", "Is there anything else?"
PROBLEM, WORKS, LAST = "I have no data abroad.", "It works now.", "No, thank you. ###STOP###"
PROMPT = "You have no data abroad. If it works, say ###STOP###."
SAID = [GREETING, PROBLEM, ASKS, WORKS, THEN]
CALLS = ["enable_line", "toggle_roaming", "look"]


class Phone(TaskEnvironment):
    line: bool = False
    roaming: bool = False


toolpack: Any = Toolpack("phone", Phone)
Whole = Annotated[Phone, Depends(lambda phone: phone)]


@toolpack.function
def enable_line(phone: Whole) -> bool:
    """Let the line roam."""
    phone.line = True
    return True


@toolpack.function
def toggle_roaming(phone: Whole) -> bool:
    """Switch roaming on or off."""
    phone.roaming = not phone.roaming
    return phone.roaming


@toolpack.function(read_only=True)
def look(phone: Whole, times: int = 1) -> str:
    """Return whether mobile data works.

    :param times: The number of looks.
    """
    return "data " * times if phone.line and phone.roaming else "no data"


@toolpack.task(
    "roam",
    "Help.",
    participants={
        "agent": {"functions": ["enable_line"], "answers": False},
        "user": {
            "functions": ["toggle_roaming", "look"],
            "prompt": PROMPT,
            "answers": True,
        },
    },
)
def roam(rollout: Rollout[Phone]) -> None:
    rollout.check("data", rollout.environment.line and rollout.environment.roaming)
    rollout.check("each call once", [call.function for call in rollout.calls] == CALLS)
    rollout.check("each word once", [message.content for message in rollout.messages] == SAID)
    rollout.check("the last word", rollout.answer == LAST)
