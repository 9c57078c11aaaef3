"""A second pack besides the ledger: built by a factory with options, and opt-in."""

from typing import Annotated

from pydantic import BaseModel, Field

from server import Depends, TaskEnvironment, Toolpack


class Stamp:
    """A plain class that no annotation of the environment reaches."""

    def __init__(self, text: str) -> None:
        self.text = text


class Vault(BaseModel):
    gold: int
    log: list[str] = Field(default_factory=list)
    seal: object = Field(None, exclude=True)


class VaultEnvironment(TaskEnvironment):
    vault: Vault


def open_vault(gold: int = 10, owners: list[str] | None = None, secret: str = "hidden") -> VaultEnvironment:
    """Open a vault.

    :param gold: How much gold is in it.
    :param owners: Whose it is.
    """
    if gold < 0:
        raise ValueError("there is no less than nothing")
    return VaultEnvironment(vault=Vault(gold=gold, log=[*(owners or []), secret], seal=Stamp("new")))


toolpack = Toolpack("vault", open_vault, opt_in=True, state_types=[Stamp])

TheVault = Annotated[Vault, Depends("vault")]


@toolpack.function
def take_gold(vault: TheVault, amount: int) -> int:
    """Take gold out.

    :param amount: How much.
    """
    vault.gold -= amount
    vault.log.append(f"took {amount}")
    if vault.gold < 0:
        raise ValueError("the vault is empty")
    return amount


@toolpack.function(read_only=True)
def get_log(vault: TheVault) -> list[str]:
    """Get the log."""
    return vault.log


@toolpack.function(read_only=True)
def read_seal(vault: TheVault) -> str:
    """Read the seal."""
    return vault.seal.text


@toolpack.function
def store_list(vault: TheVault, things: list[str]) -> int:
    """Store the given list object itself.

    :param things: The list.
    """
    vault.log = things
    return len(things)
