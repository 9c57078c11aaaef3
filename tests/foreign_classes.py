"""Plain classes of authors who don't know Toolpack Server: a file system, the tools of a shop, an office.

Tests make toolpacks from them. They aren't adapted to the server: type hints are wrong, docstrings have gaps, and
objects refer to each other.
"""

import asyncio
import datetime
import enum
import functools
import random
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Dict, Generic, List, Optional, TypeVar, Union

from pydantic import BaseModel

# A file system, whose folders know their parents


class File:
    def __init__(self, name: str, content: str = "") -> None:
        self.name: str = name
        self.content: str = content
        self._last_modified: datetime.datetime = datetime.datetime(2026, 1, 1)

    def _write(self, new_content: str) -> None:
        self.content = new_content


class Directory:
    def __init__(self, name: str, parent: Optional["Directory"] = None) -> None:
        self.name: str = name
        self.parent: Optional["Directory"] = parent
        self.contents: Dict[str, Union["File", "Directory"]] = {}

    def _add(self, item: Union["File", "Directory"]) -> None:
        self.contents[item.name] = item

    def __repr__(self):
        return f"<Directory: {self.name}, Parent: {self.parent}, Contents: {self.contents}>"

    def __eq__(self, other):
        return isinstance(other, Directory) and self.name == other.name and self.contents == other.contents


class FileSystem:
    """A simple file system.

    Attributes:
        root: The root directory.
    """

    def __init__(self) -> None:
        """Initialize the file system with an empty root."""
        self.root: Directory
        self._current_dir: Directory
        self._api_description = "A file system."
        self.long_context = False
        self._load_scenario({"root": {"workspace": {}}})

    def _load_scenario(self, scenario: dict, long_context: bool = False) -> None:
        """Load a scenario into the file system.

        Args:
            scenario (dict): The scenario to load, like {"root": {"name": {"file.txt": "text"}}}.
        """
        self.long_context = long_context
        ((name, tree),) = scenario["root"].items()
        self.root = Directory(name)
        self._fill(self.root, tree)
        self._current_dir = self.root

    def _fill(self, directory, tree):
        for name, item in tree.items():
            if isinstance(item, dict):
                child = Directory(name, directory)
                self._fill(child, item)
                directory._add(child)
            else:
                directory._add(File(name, item))

    def pwd(self):
        """Return the current working directory path.

        Args:
            None
        Returns:
            current_working_directory (str): The path.
        """
        path, directory = [], self._current_dir
        while directory is not None and directory.name != self.root:
            path.append(directory.name)
            directory = directory.parent
        return {"current_working_directory": "/" + "/".join(reversed(path))}

    def ls(self, a: bool = False) -> Dict[str, List[str]]:
        """List the contents of the current directory.

        Args:
            a (bool): [Optional] Show hidden files and directories. Defaults to False.
        """
        names = list(self._current_dir.contents)
        return {"current_directory_content": names if a else [n for n in names if not n.startswith(".")]}

    def cd(self, folder: str) -> Union[None, Dict[str, str]]:
        """Change the current working directory to the specified folder.

        Args:
            folder (str): The folder of the directory to change to.
        """
        if folder == "..":
            if self._current_dir.parent is None:
                return {"error": "Current directory is already the root. Cannot go back."}
            self._current_dir = self._current_dir.parent
            return {}
        target = self._current_dir.contents.get(folder)
        if not isinstance(target, Directory):
            return {"error": f"cd: {folder}: No such directory."}
        self._current_dir = target
        return {"current_working_directory": target.name}

    def mkdir(self, dir_name: str):
        """Create a new directory in the current directory.

        Args:
            dir_name (str): The name of the new directory.
        """
        if dir_name in self._current_dir.contents:
            return {"error": f"mkdir: cannot create directory '{dir_name}': File exists"}
        self._current_dir._add(Directory(dir_name, self._current_dir))
        return None

    def touch(self, file_name):
        """Create a new file of any extension in the current directory.

        Args:
            file_name (str): The name of the new file.
        """
        if file_name in self._current_dir.contents:
            return {"error": f"touch: cannot touch '{file_name}': File exists"}
        self._current_dir._add(File(file_name))
        return None

    def echo(self, content: str, file_name: str = None):
        """Write content to a file or display it in the terminal."""
        if not file_name:
            return {"terminal_output": content}
        self.touch(file_name)
        self._current_dir.contents[file_name]._write(content)
        return {"terminal_output": None}

    def cat(self, file_name: str) -> Dict[str, str]:
        """Display the contents of a file.

        Args:
            file_name (str): The name of the file from the current directory to display.
            missing (str): There is no such parameter.
        """
        return {"file_content": self._current_dir.contents[file_name].content}

    def find(self, path: str = ".", name: str = None) -> dict:
        """Find any file or directories under a path that contain name in its name.

        Args:
            path (str): The path to start from.
            name (str): [Optional] The name to search for. If None, all items are returned.
        """
        paths = []

        def visit(directory, prefix):
            for key, item in directory.contents.items():
                if name is None or name in key:
                    paths.append(f"{prefix}/{key}")
                if isinstance(item, Directory):
                    visit(item, f"{prefix}/{key}")

        visit(self._current_dir, ".")
        return {"matches": paths}

    def wc(self, file_name: str, mode: str = "l"):
        """Count the lines, words or characters of a file.

        Args:
            file_name (str): The file.
            mode (str): l, w or c.
        """
        text = self._current_dir.contents[file_name].content
        count = {"l": len(text.splitlines()), "w": len(text.split()), "c": len(text)}
        return {"count": count[mode], "type": mode}

    def sort(self, file_name: str):
        """Sort the contents of a file line by line."""
        return {"sorted_content": "\n".join(sorted(self._current_dir.contents[file_name].content.splitlines()))}

    def grep(self, file_name: str, pattern: str):
        """Search for lines in a file that contain the specified string pattern."""
        lines = self._current_dir.contents[file_name].content.splitlines()
        return {"matching_lines": [line for line in lines if pattern in line]}

    def tail(self, file_name: str, lines: int = 10):
        """Display the last part of a file."""
        return {"last_lines": "\n".join(self._current_dir.contents[file_name].content.splitlines()[-lines:])}

    def rm(self, file_name: str):
        """Remove a file or directory."""
        if file_name not in self._current_dir.contents:
            return {"error": f"rm: cannot remove '{file_name}': No such file or directory"}
        del self._current_dir.contents[file_name]
        return {"result": f"'{file_name}' removed"}

    def mv(self, source: str, destination: str):
        """Move a file or directory from one location to another."""
        item = self._current_dir.contents.pop(source)
        target = self._current_dir.contents.get(destination)
        if isinstance(target, Directory):
            target._add(item)
        else:
            item.name = destination
            self._current_dir._add(item)
        return {"result": f"'{source}' moved to '{destination}'"}

    def cp(self, source: str, destination: str):
        """Copy a file."""
        copy = File(destination, self._current_dir.contents[source].content)
        self._current_dir._add(copy)
        return {"result": f"'{source}' copied to '{destination}'"}

    def du(self, human_readable: bool = False):
        """Estimate the disk usage of a directory and its contents."""

        def size(item):
            return sum(map(size, item.contents.values())) if isinstance(item, Directory) else len(item.content)

        total = size(self._current_dir)
        return {"disk_usage": f"{total} bytes" if human_readable else total}

    def undocumented(self):
        raise AssertionError("it has no docstring, so no agent sees it")


class MailBox:
    """Mail.

    Args:
        owner: Whose mail it is.
    """

    def __init__(self, owner: str = "ann", _secret: str = "x") -> None:
        self.owner = owner
        self.inbox: list = []
        self._secret = _secret

    def ls(self):
        """List the mail."""
        return self.inbox

    def send(self, text: str, to: str = "bob"):
        """Send mail."""
        self.inbox.append({"to": to, "text": text})
        return len(self.inbox)


# A shop's tools, marked by decorators, over a database of pydantic models


class ToolType(str, enum.Enum):
    READ = "read"
    WRITE = "write"
    GENERIC = "generic"


def is_tool(tool_type: ToolType = ToolType.READ, mutates_state: bool | None = None):
    def decorate(method):
        method.__tool__ = True
        method.__tool_type__ = tool_type
        method.__mutates_state__ = tool_type is ToolType.WRITE if mutates_state is None else mutates_state
        return method

    return decorate


class Item(BaseModel):
    item_id: str
    price: float
    options: dict[str, str] = {}


class Order(BaseModel):
    order_id: str
    items: list[Item]
    status: str = "pending"


class ShopDB(BaseModel):
    orders: dict[str, Order]

    @classmethod
    def load(cls) -> "ShopDB":
        """Load the database."""
        return cls(orders={"#1": Order(order_id="#1", items=[Item(item_id="i1", price=9.5)])})


T = TypeVar("T", bound=BaseModel)


class ToolKitType(type):
    """Collects the tools of a class."""

    def __init__(cls, name, bases, attributes):
        super().__init__(name, bases, attributes)
        cls._tools = {n: m for n, m in attributes.items() if hasattr(m, "__tool__")}


class ToolKitBase(metaclass=ToolKitType):
    """Base class of tool kits."""

    def __init__(self, db: T | None = None):
        self.db: T | None = db

    @property
    def tools(self):
        """Get the tools."""
        return {name: getattr(self, name) for name in self._tools}

    def use_tool(self, tool_name: str, **kwargs) -> str:
        """Use a tool."""
        return self.tools[tool_name](**kwargs)


class ShopTools(ToolKitBase):
    """All the tools of the shop."""

    db: ShopDB

    def __init__(self, db: ShopDB) -> None:
        super().__init__(db)

    def _order(self, order_id: str) -> Order:
        if order_id not in self.db.orders:
            raise ValueError("Order not found")
        return self.db.orders[order_id]

    @is_tool(ToolType.WRITE)
    def cancel_order(self, order_id: str, reason: str) -> Order:
        """Cancel a pending order.

        Args:
            order_id: The order id, such as '#W0000000'. Be careful there is a '#' symbol at the beginning.
            reason: The reason, either 'no longer needed' or 'ordered by mistake'.

        Raises:
            ValueError: If the order is not pending.
        """
        order = self._order(order_id)
        if order.status != "pending":
            raise ValueError("Non-pending order cannot be cancelled")
        order.status = f"cancelled: {reason}"
        return order

    @is_tool(ToolType.READ)
    def get_order(self, order_id: str) -> Order:
        """Get the details of an order.

        Args:
            order_id: The order id.
        """
        return self._order(order_id)

    @is_tool(ToolType.GENERIC)
    def calculate(self, expression: str) -> str:
        """Calculate the result of a sum.

        Args:
            expression: Numbers and plus signs.
        """
        if not re.fullmatch(r"[\d+. ]+", expression):
            raise ValueError("Invalid characters in expression")
        return str(sum(map(float, expression.split("+"))))


# An office, with a bit of everything


class Priority(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class Ticket:
    title: str
    priority: Priority = Priority.LOW
    tags: set[str] = field(default_factory=set)
    blocks: "Ticket | None" = None


def logged(method):
    @functools.wraps(method)
    def wrapper(*args, **kwargs):
        return method(*args, **kwargs)

    return wrapper


class Person:
    __slots__ = ("_pin", "friends", "name")

    def __init__(self, name):
        self.name = name
        self.friends = []
        self._pin = "1234"


class Room(ABC, Generic[T]):
    @abstractmethod
    def describe(self) -> str:
        """Describe the room."""

    def clean(self, thoroughly=False):
        """Clean the room.

        Parameters
        ----------
        thoroughly : bool
            Whether to clean the corners too.
        """
        self.cleaned = "well" if thoroughly else "a bit"


class Office(Room[Item]):
    """An office.

    Args:
        seed: Of the dice.
        people: Who works there.
    """

    capacity = 10

    def __init__(self, seed: int = 1, people: list[str] = ["ann", "bob"], *, verbose: bool = False):
        self.dice = random.Random(seed)
        self.people = [Person(name) for name in people]
        self.people[0].friends = self.people  # each person knows everybody, also themselves
        self.tickets: Dict[str, Any] = {}
        self.grid = {(0, 1): "desk"}
        self.blob = b"\xff"
        self._verbose = verbose
        self.cleaned = None

    def describe(self):  # its docstring is that of the method it overrides
        return f"{len(self.people)} people"

    @property
    def busy(self) -> bool:
        """Whether a person is in the office."""
        return bool(self.people)

    @staticmethod
    def add(a: float, b: float = 1) -> float:
        """Add two numbers."""
        return a + b

    @classmethod
    def how_many(cls) -> int:
        """Say how many people fit in."""
        return cls.capacity

    @classmethod
    def open(cls, seed: int) -> "Office":
        """Open another office."""
        return cls(seed)

    async def wait(self, seconds: float = 0) -> str:
        """Wait for a moment."""
        await asyncio.sleep(seconds)
        self.cleaned = "waited"
        return "done"

    @logged
    def open_ticket(self, title: str, priority: Priority = Priority.LOW, tags: list = [], callback=print):
        """Open a ticket.

        Args:
            title: What it is about.
        """
        tags.append(title)
        self.tickets[title] = Ticket(title, priority, set(tags))
        return self.tickets[title]

    def block(self, title: str, by: str):
        """Let one ticket block another."""
        self.tickets[by].blocks = self.tickets[title]
        self.tickets[title].blocks = self.tickets[by]

    def roll(self):
        """Roll the dice."""
        return self.dice.randint(1, 6)

    def meet(self, person: Dict[str, Any]) -> Person:
        """Meet a person."""
        self.people.append(Person(person["name"]))
        return self.people[-1]

    def copy(self, json: str, schema: Optional[str] = None) -> str:
        """Copy a text; its parameters are called like methods of pydantic's models."""
        return f"{json} {schema}"


def _numbered(number):
    def method(self, by: int = 1):
        self.values[number] = self.values.get(number, 0) + by
        return self.values[number]

    method.__name__ = f"count_{number}"
    method.__doc__ = f"Count number {number}.\n\nArgs:\n    by (int): By how much."
    return method


class Large:
    """Has 120 methods."""

    def __init__(self):
        self.values = {}


for _number in range(120):
    setattr(Large, f"count_{_number}", _numbered(_number))
