"""A toolpack of counters for tests of events, and a simple model of sessions with event rules."""

import copy
import itertools
from typing import Annotated, Any

from hypothesis import assume
from pydantic import BaseModel

from toolpack_server import Depends, Toolpack
from toolpack_server.features.evaluation.events.hook import MAX_EVENTS
from toolpack_server.features.evaluation.events.world import WORLD_PACK
from toolpack_server.packs.catalog import Catalog

NAMES = ["a", "b", "c"]
BEGINS, STEP, SECOND = 1_772_442_000 * 10**6, 10, 10**6


class Counters(BaseModel):
    counts: dict[str, int] = {}


Counts = Annotated[dict[str, int], Depends("counts")]
toolpack = Toolpack("counters", Counters, begins="2026-03-02T09:00:00Z", step_seconds=STEP)


@toolpack.function
def bump(counts: Counts, name: str) -> int:
    """Increase a counter.

    :param name: The name of the counter.
    """
    if name == "bad":
        raise ValueError("It is bad.")
    counts[name] = counts.get(name, 0) + 1
    return counts[name]


@toolpack.function(read_only=True)
def total(counts: Counts) -> int:
    """Return the sum."""
    return sum(counts.values())


@toolpack.function
def gift(counts: Counts) -> str:
    """Return a gift."""
    counts["gift"] = counts.get("gift", 0) + 1
    return "a gift"


CATALOG = Catalog({"counters": toolpack, "world": WORLD_PACK})


class Model:
    """A model of one session with event rules, written as simply as possible.

    Times are seconds since the session's creation.
    """

    def __init__(self, rules: list[dict[str, Any]]) -> None:
        self.rules = rules
        self.now = self.rest = 0
        self.coming: list[list[Any]] = []
        self.number = 0
        self.counts: dict[str, int] = {}
        self.times: dict[str, int] = {}
        self.done: dict[str, int] = {}
        self.news: list[tuple[int, str]] = []
        self.offered = {name: False for rule in rules for name in rule.get("offer", [])}
        self.depth = 0
        self.truth = {rule["name"]: self.holds(rule) for rule in rules if "when" in rule}
        self.trace: list[tuple[Any, ...]] = []
        self.version = 0
        self.ends: dict[int, dict[str, Any]] = {}  # the state at the end of each version
        for rule in rules:
            if "at" in rule or "every" in rule:
                self.schedule(rule, rule.get("at", rule.get("every")))
        self.mark()

    def mark(self) -> None:
        saved_names = {"rules", "trace", "version", "ends"}
        self.ends[self.version] = copy.deepcopy(
            {name: each for name, each in vars(self).items() if name not in saved_names}
        )

    def reset(self, version: int) -> None:
        vars(self).update(copy.deepcopy(self.ends[version]))
        self.version += 1
        self.rest = self.now
        self.mark()
        self.happen_until(self.rest)

    def fork(self, version: int) -> "Model":
        forked = copy.deepcopy(self)
        vars(forked).update(copy.deepcopy(self.ends[version]))
        forked.rest, forked.version, forked.ends = forked.now, 0, {}
        forked.mark()
        return forked

    def holds(self, rule: dict[str, Any]) -> bool:
        return sum(self.counts.values()) > rule["when"]["where"]["/result"]["above"]

    def schedule(self, rule: dict[str, Any], base: int) -> None:
        name = rule["name"]
        if self.times.get(name, 0) >= rule.get("count", 10**9):
            return
        at = max(base + rule.get("delay", 0), self.now)
        depth = self.depth + 1 if at == self.now else 0
        if at > rule.get("until", 10**9) or depth > 16 or len(self.coming) >= 100:
            return
        self.times[name] = self.times.get(name, 0) + 1
        self.coming.append([at, self.number, rule, base, depth])
        self.coming.sort(key=lambda each: each[:2])
        self.number += 1

    def run(self, name: str) -> bool:
        if name != "bad":
            self.counts[name] = self.counts.get(name, 0) + 1
            self.version += 1
        return name != "bad"

    def called(self, kwargs: dict[str, Any], *, ok: bool, world: bool) -> None:
        for rule in self.rules:
            if rule.get("call") and (world == (rule.get("by") == "world")):
                about_error = "/error" in rule.get("where", {})
                named = rule.get("where", {}).get("/kwargs/name", kwargs.get("name")) == kwargs.get("name")
                if about_error != ok and named:
                    self.schedule(rule, self.now)

    def changed(self) -> None:
        for rule in self.rules:
            if "when" in rule:
                before, self.truth[rule["name"]] = self.truth[rule["name"]], self.holds(rule)
                if self.truth[rule["name"]] and not before:
                    self.schedule(rule, self.now)

    def happen_until(self, until: int) -> None:
        happened = 0
        while self.coming and self.coming[0][0] <= until:
            self.happen()
            happened += 1
            assume(happened <= MAX_EVENTS)  # `test_events.py` has a test of calls that are refused

    def happen(self) -> None:
        at, _, rule, base, self.depth = self.coming.pop(0)
        self.now = at
        name = rule.get("args", {}).get("name")
        ok = self.run(name) if "do" in rule else True
        self.trace.append((at, rule["name"], ok))
        if ok:
            self.done[rule["name"]] = self.done.get(rule["name"], 0) + 1
            if "notice" in rule:
                self.news = [*self.news, (at, rule["notice"])][-50:]
            self.offered |= dict.fromkeys(rule.get("offer", []), True) | dict.fromkeys(rule.get("withdraw", []), False)
            for other in self.rules:
                after = other.get("after", [])
                if rule["name"] in after and all(self.done.get(each) for each in after):
                    self.schedule(other, at)
        if "every" in rule:
            self.schedule(rule, base + rule["every"])
        if "do" in rule:
            self.called({"name": name}, ok=ok, world=True)
        if ok and "do" in rule:
            self.changed()
        self.mark()

    def call(self, name: str) -> bool:
        self.happen_until(self.rest + STEP)
        self.now = self.rest = self.rest + STEP
        self.depth = 0
        ok = self.run(name)
        self.trace.append((self.now, "bump", ok))
        self.called({"name": name}, ok=ok, world=False)
        if ok:
            self.changed()
        self.mark()
        self.happen_until(self.rest)
        return ok

    def wait(self, seconds: int, *, stop: bool) -> dict[str, Any]:
        start, end = self.rest, self.rest + seconds
        for happened in itertools.count():
            if stop and self.news:
                end = min(end, max(start, self.news[0][0]))
            if not (self.coming and self.coming[0][0] <= end):
                break
            if happened == MAX_EVENTS:
                end = max(self.now, self.rest)
                break
            self.happen()
        self.now = self.rest = end
        self.depth = 0
        news, self.news = [text for _, text in self.news], []
        self.trace.append((end, "wait", True))
        self.mark()
        self.happen_until(self.rest)  # events that a wait that ended early has left
        return {"waited": float(end - start), "news": news}
